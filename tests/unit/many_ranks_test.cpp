// A small model moved by as many ranks as large jobs have: most have little or nothing to do, and the bytes are the same.
#include <gtest/gtest.h>

#include "support/command_run.h"
#include "unshard/merge.h"

namespace unshard {
namespace {

using testing::content;

TEST(ManyRanks, SixtyFourRanksWriteTheSameBytes) {
  const std::string model_case = UNSHARD_CASES "/fsdp/two_stages/";
  for (const IoMode io : {IoMode::posix, IoMode::collective}) {
    const testing::TemporaryFolder folder;
    MergeOptions options;
    options.input.local_dirs = {model_case + "input"};
    options.input.buffer_bytes = std::uint64_t{1} << 20;
    options.target_dir = folder / "model";
    options.io = io;
    (void)testing::run_command(64, [&](const Session& session) { (void)merge(session, options); });
    EXPECT_EQ(content(folder / "model/model.safetensors"), content(model_case + "expected/model.safetensors"));
  }
}

}  // namespace
}  // namespace unshard
