// The command `merge` as a whole, where its steps must fit together; tests/cases has the many kinds of input. Inputs and expected files are
// those of the cases, made by the frameworks themselves.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/command_run.h"
#include "support/real_disk.h"
#include "unshard/merge.h"

namespace unshard {
namespace {

using testing::content;
using testing::TemporaryFolder;

const std::string staged_case = UNSHARD_CASES "/fsdp/two_stages/";

MergeOptions merge_into(const std::string& target) {
  MergeOptions options;
  options.input.local_dirs = {staged_case + "input"};
  options.target_dir = target;
  return options;
}

std::string failure_of(const MergeOptions& options, int ranks = 2) {
  return testing::failure_of(ranks, [&](const Session& session) { (void)merge(session, options); });
}

TEST(Merge, StageTwoWithAnotherCutThanStageOneIsRefused) {
  const TemporaryFolder folder;
  MergeOptions options = merge_into(folder / "model");
  options.stage = 1;
  options.stage_layers = 3;
  ASSERT_EQ(failure_of(options), "");
  options.stage = 2;
  options.stage_layers = 5;  // nobody would write layers 3 and 4
  EXPECT_TRUE(failure_of(options).starts_with("usage: ")) << failure_of(options);
  EXPECT_FALSE(std::filesystem::exists(folder / "model"));
  options.stage_layers = 3;
  EXPECT_EQ(failure_of(options, 3), "");
  EXPECT_EQ(content(folder / "model/model.safetensors"), content(staged_case + "expected/model.safetensors"));
}

/// The real disk, on which one rank does not see a folder.
class WithoutFolder final : public testing::RealDisk {
 public:
  explicit WithoutFolder(std::string hidden) : hidden_(std::move(hidden)) {}

  std::unique_ptr<File> open_for_reading(const std::string& path) override {
    if (is_hidden(path)) throw Error(ErrorCode::io, path + ": is not on this node");
    return RealDisk::open_for_reading(path);
  }
  std::optional<FileStatus> status(const std::string& path) override { return is_hidden(path) ? std::nullopt : RealDisk::status(path); }

 private:
  [[nodiscard]] bool is_hidden(const std::string& path) const { return path.starts_with(hidden_); }
  std::string hidden_;
};

TEST(Merge, TokenizerFilesThatOnlyAnotherNodeSeesAreCopied) {
  const TemporaryFolder folder;
  folder.copy(staged_case + "input/huggingface", "config");
  MergeOptions options = merge_into(folder / "model");
  options.hf_config = folder / "config";
  run_ranks(2, {.ranks_per_node = 1}, [&](Comm& comm) {
    testing::RecordingLog log;
    WithoutFolder node_0(options.hf_config);
    const auto node_1 = posix_file_system();
    (void)merge({comm, comm.rank() == 0 ? static_cast<FileSystem&>(node_0) : *node_1, log}, options);
  });
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"})
    EXPECT_EQ(content(folder / ("model/" + std::string(name))), content(staged_case + "input/huggingface/" + name)) << name;
}

}  // namespace
}  // namespace unshard
