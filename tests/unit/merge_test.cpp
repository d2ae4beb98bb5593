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

TEST(Merge, StagesOfACheckpointWithAnAdapterGiveWhatOneRunGives) {
  const TemporaryFolder folder;
  MergeOptions options = merge_into(folder / "whole");
  options.input.local_dirs = {UNSHARD_CASES "/lora/fsdp2_fold/input"};
  ASSERT_EQ(failure_of(options), "");
  for (const int ranks : {1, 2, 3}) {
    const std::string name = "model" + std::to_string(ranks);
    options.target_dir = folder / name;
    options.stage_layers = 1;
    for (options.stage = 1; options.stage <= 2; ++options.stage) EXPECT_EQ(failure_of(options, ranks), "") << options.stage;
    for (const char* file : {"model.safetensors", "lora_adapter/adapter_model.safetensors", "lora_adapter/adapter_config.json"}) {
      EXPECT_NE(content(folder / ("whole/" + std::string(file))), "") << file;
      EXPECT_EQ(content(folder / (name + "/" + file)), content(folder / ("whole/" + std::string(file)))) << file;
    }
  }
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

// Two nodes have another adapter under one path, of the same size: which of them is meant, nobody can know.
TEST(MergeLora, AnAdapterThatDiffersBetweenNodesIsRefusedWithBothHosts) {
  const TemporaryFolder here, there;
  for (const TemporaryFolder* disk : {&here, &there}) disk->copy(UNSHARD_CASES "/lora/plain_fp32/input", "in");
  MergeLoraOptions options;
  options.merge.input.local_dirs = {"/in/base"};
  options.merge.adapters = {{"/in/adapter", 1}};
  options.merge.target_dir = "/out";
  options.merge.dry_run = true;
  const auto failure = [&] {
    try {
      (void)testing::run_command(2, [&](const Session& session) { (void)merge_lora(session, options); }, {here / "", there / ""});
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + ": " + error.what();
    }
    return std::string();
  };
  EXPECT_EQ(failure(), "");
  std::fstream other(there / "in/adapter/adapter_model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  other.seekp(-1, std::ios::end);
  other.put('\x7f');
  other.close();
  const std::string text = failure();
  EXPECT_TRUE(text.starts_with("bad_input: ")) << text;
  for (const char* part : {"adapter_model.safetensors", "node0", "node1"}) EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace
}  // namespace unshard
