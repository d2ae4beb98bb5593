#include "unshard/checkpoint_format.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/node_files.h"
#include "tracker.h"
#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

using test::NodeFiles;
using test::ScratchFolder;
using Names = std::vector<std::string>;

const std::string rank_0_of_1 = "model_world_size_1_rank_0.pt";

Source found(const ScratchFolder& disk, const Names& roots, std::string_view backend = "auto") {
  NodeFiles files(disk.path());
  const auto comm = self_comm();
  return discover(list_tree(*comm, files, roots), backend);
}

/// The error's text; its code must be `code`.
std::string refused(const ScratchFolder& disk, const Names& roots, ErrorCode code = ErrorCode::bad_input,
                    std::string_view backend = "auto") {
  try {
    const Source source = found(disk, roots, backend);
    ADD_FAILURE() << "found " << source.folder;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "no '" << part << "' in: " << text;
}

TEST(Discover, TakesTheFolderItself) {
  ScratchFolder disk;
  disk.write("actor/" + rank_0_of_1, "x");
  const Source source = found(disk, {"/actor"});
  EXPECT_EQ(source.format, "fsdp");
  EXPECT_EQ(source.folder, "/actor");
  EXPECT_EQ(source.world_size, 1U);
  ASSERT_EQ(source.files.size(), 1U);
  EXPECT_EQ(source.files[0].path, "/actor/" + rank_0_of_1);
  EXPECT_EQ(source.files[0].label, rank_0_of_1);
}

TEST(Discover, LooksForConfigBelowTheCheckpointFirst) {
  ScratchFolder disk;
  disk.write("actor/" + rank_0_of_1, "x");
  EXPECT_EQ(found(disk, {"/actor"}).config_folders,
            (Names{"/actor/huggingface", "/actor/hf_config_and_tokenizer", "/actor/model/huggingface", "/actor"}));
}

TEST(Discover, TakesTheOneCheckpointBelow) {
  ScratchFolder disk;
  disk.write("step/actor/" + rank_0_of_1, "x");
  disk.write("step/data.pt", "x");
  EXPECT_EQ(found(disk, {"/step"}).folder, "/step/actor");
  EXPECT_EQ(found(disk, {"/step"}).files[0].label, "actor/" + rank_0_of_1);
}

TEST(Discover, FollowsTheTrackerOfARunFolder) {
  ScratchFolder disk;
  disk.write("run/latest_checkpointed_iteration.txt", "10\n");
  disk.write("run/global_step_10/actor/" + rank_0_of_1, "x");
  disk.write("run/global_step_5/actor/" + rank_0_of_1, "x");
  EXPECT_EQ(found(disk, {"/run"}).folder, "/run/global_step_10/actor");
}

TEST(Discover, ListsSeveralCandidates) {
  ScratchFolder disk;
  disk.write("run/global_step_5/actor/" + rank_0_of_1, "x");
  disk.write("run/global_step_10/actor/" + rank_0_of_1, "x");
  disk.write("step/actor/" + rank_0_of_1, "x");
  disk.write("step/critic/" + rank_0_of_1, "x");
  const std::string steps = refused(disk, {"/run"});
  EXPECT_TRUE(says(steps, "/run/global_step_5/actor"));
  EXPECT_TRUE(says(steps, "/run/global_step_10/actor"));
  const std::string roles = refused(disk, {"/step"});
  EXPECT_TRUE(says(roles, "/step/actor"));
  EXPECT_TRUE(says(roles, "/step/critic"));
}

TEST(Discover, NamesABadTracker) {
  ScratchFolder disk;
  disk.write("empty/latest_checkpointed_iteration.txt", " \n");
  disk.write("empty/global_step_5/" + rank_0_of_1, "x");
  disk.write("wrong/latest", "global_step99");
  disk.write("wrong/global_step5/" + rank_0_of_1, "x");
  disk.write("outside/latest", "../empty/global_step_5");
  disk.write("outside/other/x", "x");
  EXPECT_TRUE(says(refused(disk, {"/empty"}), "/empty/latest_checkpointed_iteration.txt"));
  const std::string wrong = refused(disk, {"/wrong"});
  EXPECT_TRUE(says(wrong, "/wrong/latest"));
  EXPECT_TRUE(says(wrong, "global_step99"));
  EXPECT_TRUE(says(refused(disk, {"/outside"}), "/outside/latest"));
}

TEST(Discover, SaysWhatItFoundInstead) {
  ScratchFolder disk;
  disk.write("empty/sub/x", "");
  disk.write("texts/readme.txt", "x");
  disk.write("dcp/.metadata", "x");
  disk.write("dcp/__0_0.distcp", "x");
  disk.write("deep/step/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "x");
  disk.write("mega/latest_checkpointed_iteration.txt", "100");
  disk.write("mega/iter_0000100/mp_rank_00/model_optim_rng.pt", "x");
  disk.write("file", "x");
  EXPECT_TRUE(says(refused(disk, {"/texts"}), "readme.txt"));
  EXPECT_EQ(found(disk, {"/dcp"}).format, "dcp");
  EXPECT_TRUE(says(refused(disk, {"/deep"}, ErrorCode::unsupported), "DeepSpeed"));
  EXPECT_EQ(found(disk, {"/mega"}).format, "megatron");
  EXPECT_TRUE(says(refused(disk, {"/dcp"}, ErrorCode::bad_input, "fsdp"), "DCP"));
  EXPECT_TRUE(says(refused(disk, {"/file"}), "not a folder"));
}

TEST(Discover, JoinsTheFoldersOfTwoNodes) {
  ScratchFolder disk;
  disk.write("a/model_world_size_2_rank_1.pt", "x");
  disk.write("b/model_world_size_2_rank_0.pt", "x");
  disk.write("b/fsdp_config.json", R"({"world_size": 2})");
  const Source source = found(disk, {"/a", "/b"});
  ASSERT_EQ(source.files.size(), 2U);
  EXPECT_EQ(source.files[0].path, "/b/model_world_size_2_rank_0.pt");
  EXPECT_EQ(source.files[1].rank, 1U);
  EXPECT_TRUE(source.findings.empty());
  EXPECT_EQ(source.config_folders.front(), "/a/huggingface");
  EXPECT_EQ(source.config_folders[1], "/b/huggingface");
}

TEST(Discover, RefusesTwoStepsInTwoFolders) {
  ScratchFolder disk;
  disk.write("a/global_step_5/model_world_size_2_rank_1.pt", "x");
  disk.write("b/global_step_6/model_world_size_2_rank_0.pt", "x");
  EXPECT_TRUE(says(refused(disk, {"/a", "/b"}), "/b/global_step_6"));
}

TEST(Discover, RefusesAFileThatDiffersInSizeBetweenNodesOnlyWhereItCounts) {
  ScratchFolder a, b;
  a.write("c/" + rank_0_of_1, "x");
  b.write("c/" + rank_0_of_1, "xxx");
  a.write("d/" + rank_0_of_1, "x");
  a.write("d/train.log", "x");
  b.write("d/train.log", "xxx");
  InProcessOptions options;
  options.ranks_per_node = 1;
  run_ranks(2, options, [&](Comm& comm) {
    NodeFiles files((comm.rank() == 0 ? a : b).path());
    try {
      static_cast<void>(discover(list_tree(comm, files, {"/c"}), "auto"));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_input);
      EXPECT_TRUE(says(error.what(), rank_0_of_1));
      EXPECT_TRUE(says(error.what(), "3 bytes"));
    }
    EXPECT_EQ(discover(list_tree(comm, files, {"/d"}), "auto").files.size(), 1U);
  });
}

TEST(Tracker, MeansOneOfTheFoldersThere) {
  const Names folders{"global_step_10", "global_step5", "iter_0000020", "checkpoint-30", "release"};
  EXPECT_EQ(tracked_folder("10\n", folders), "global_step_10");
  EXPECT_EQ(tracked_folder("20", folders), "iter_0000020");
  EXPECT_EQ(tracked_folder(" 30 ", folders), "checkpoint-30");
  EXPECT_EQ(tracked_folder("release", folders), "release");
  EXPECT_EQ(tracked_folder("global_step5", folders), "global_step5");
  EXPECT_EQ(tracked_folder("1", folders), std::nullopt);
  EXPECT_EQ(tracked_folder("../release", folders), std::nullopt);
}

}  // namespace
}  // namespace unshard
