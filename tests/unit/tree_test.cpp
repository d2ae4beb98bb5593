#include "unshard/source.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "support/node_files.h"
#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

using test::NodeFiles;
using test::ScratchFolder;
using Names = std::vector<std::string>;

/// The tree that one rank on one node sees.
Tree tree_of(const ScratchFolder& disk, const Names& roots) {
  NodeFiles files(disk.path());
  const auto comm = self_comm();
  return list_tree(*comm, files, roots);
}

/// The tree that every rank of a job sees, one rank to a node; node n has the disk `disks[n]`.
Tree tree_over(const std::vector<const ScratchFolder*>& disks, const Names& roots, int ranks_per_node = 1) {
  std::vector<Tree> trees(disks.size() * static_cast<std::size_t>(ranks_per_node));
  InProcessOptions options;
  options.ranks_per_node = ranks_per_node;
  run_ranks(static_cast<int>(trees.size()), options, [&](Comm& comm) {
    NodeFiles files(disks[static_cast<std::size_t>(comm.node_of(comm.rank()))]->path());
    trees[static_cast<std::size_t>(comm.rank())] = list_tree(comm, files, roots);
  });
  for (const Tree& tree : trees) {
    EXPECT_EQ(tree.entries.size(), trees.front().entries.size());
    for (const auto& [path, entry] : trees.front().entries) {
      EXPECT_NE(tree.find(path), nullptr);
      if (tree.find(path) != nullptr) {
        EXPECT_EQ(tree.find(path)->nodes, entry.nodes) << path;
      }
    }
  }
  return trees.front();
}

TEST(ListTree, GoesThreeLevelsDeep) {
  ScratchFolder disk;
  disk.write("run/a/b/c/d", "x");
  disk.write("run/a/b/file", "x");
  const Tree tree = tree_of(disk, {"/run/"});
  EXPECT_EQ(tree.roots, Names{"/run"});
  EXPECT_NE(tree.find("/run/a/b/file"), nullptr);
  EXPECT_NE(tree.find("/run/a/b/c"), nullptr);
  EXPECT_EQ(tree.find("/run/a/b/c/d"), nullptr);
  EXPECT_EQ(tree.children("/run/a/b"), (Names{"c", "file"}));
}

TEST(ListTree, ATrackerMakesTheDepthCountFromItsStep) {
  ScratchFolder disk;
  disk.write("run/latest_checkpointed_iteration.txt", "10\n");
  disk.write("run/global_step_10/actor/huggingface/config.json", "{}");
  disk.write("run/global_step_5/actor/huggingface/config.json", "{}");
  const Tree tree = tree_of(disk, {"/run"});
  EXPECT_NE(tree.find("/run/global_step_10/actor/huggingface/config.json"), nullptr);
  EXPECT_EQ(tree.find("/run/global_step_5/actor/huggingface/config.json"), nullptr);
  EXPECT_EQ(tree.find("/run/latest_checkpointed_iteration.txt")->content, "10\n");
}

TEST(ListTree, CarriesSmallTextsThatDiscoveryNeedsAndNoOthers) {
  ScratchFolder disk;
  disk.write("c/fsdp_config.json", "{\"world_size\": 2}");
  disk.write("c/latest", std::string(70000, 'x'));
  disk.write("c/notes.txt", "long story");
  const Tree tree = tree_of(disk, {"/c"});
  EXPECT_EQ(tree.find("/c/fsdp_config.json")->content, "{\"world_size\": 2}");
  EXPECT_EQ(tree.find("/c/latest")->content, "");
  EXPECT_EQ(tree.find("/c/notes.txt")->content, "");
}

TEST(ListTree, EndsForLinksInACircleAndPrefersRealPaths) {
  ScratchFolder disk;
  disk.write("run/global_step_5/x.pt", "x");
  std::filesystem::create_directory_symlink(".", disk.path() + "/run/again");
  std::filesystem::create_directory_symlink("..", disk.path() + "/run/global_step_5/up");
  std::filesystem::create_directory_symlink("global_step_5", disk.path() + "/run/current");  // comes first by name
  const Tree tree = tree_of(disk, {"/run"});
  EXPECT_NE(tree.find("/run/global_step_5/x.pt"), nullptr);
  EXPECT_EQ(tree.find("/run/current/x.pt"), nullptr);
  EXPECT_EQ(tree.find("/run/current")->status.kind, FileKind::folder);
}

TEST(ListTree, FollowsALinkToAFolderElsewhere) {
  ScratchFolder disk;
  disk.write("big/x.pt", "x");
  disk.write("run/y", "x");
  std::filesystem::create_directory_symlink("../big", disk.path() + "/run/actor");
  EXPECT_NE(tree_of(disk, {"/run"}).find("/run/actor/x.pt"), nullptr);
}

TEST(ListTree, ADeadLinkIsNeitherFileNorFolder) {
  ScratchFolder disk;
  disk.write("run/y", "x");
  std::filesystem::create_symlink("gone", disk.path() + "/run/dead");
  EXPECT_EQ(tree_of(disk, {"/run"}).find("/run/dead")->status.kind, FileKind::other);
}

TEST(ListTree, UnitesTheDisksOfTwoNodes) {
  ScratchFolder a, b;
  a.write("ckpt/rank_0.pt", "xx");
  b.write("ckpt/rank_1.pt", "xx");
  const Tree tree = tree_over({&a, &b}, {"/ckpt"}, 2);
  EXPECT_EQ(tree.node_count, 2U);
  EXPECT_EQ(tree.children("/ckpt"), (Names{"rank_0.pt", "rank_1.pt"}));
  EXPECT_EQ(tree.find("/ckpt/rank_0.pt")->nodes, std::vector<std::uint32_t>{0});
  EXPECT_EQ(tree.find("/ckpt/rank_1.pt")->nodes, std::vector<std::uint32_t>{1});
  EXPECT_EQ(tree.find("/ckpt")->nodes, (std::vector<std::uint32_t>{0, 1}));
}

TEST(ListTree, ASharedDiskIsOneFileOnEveryNode) {
  ScratchFolder disk;
  disk.write("ckpt/rank_0.pt", "xx");
  const Tree tree = tree_over({&disk, &disk, &disk}, {"/ckpt"});
  EXPECT_EQ(tree.find("/ckpt/rank_0.pt")->nodes, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_TRUE(tree.find("/ckpt/rank_0.pt")->other_copies.empty());
}

TEST(ListTree, TwoFilesOfOneNameAndSizeAreACopyToBeCompared) {
  ScratchFolder a, b;
  a.write("ckpt/rank_0.pt", "xx");
  b.write("ckpt/rank_0.pt", "yy");
  const Tree tree = tree_over({&a, &b, &b}, {"/ckpt"});
  EXPECT_EQ(tree.find("/ckpt/rank_0.pt")->nodes, std::vector<std::uint32_t>{0});
  EXPECT_EQ(tree.find("/ckpt/rank_0.pt")->other_copies, (std::vector<std::vector<std::uint32_t>>{{1, 2}}));
  EXPECT_EQ(tree.find("/ckpt/rank_0.pt")->problem, "");
}

TEST(ListTree, TwoSizesOfOneNameAreAProblemWithBothSizes) {
  ScratchFolder a, b;
  a.write("ckpt/rank_0.pt", "xx");
  b.write("ckpt/rank_0.pt", "yyyyy");
  const std::string problem = tree_over({&a, &b}, {"/ckpt"}).find("/ckpt/rank_0.pt")->problem;
  EXPECT_NE(problem.find("2 bytes"), std::string::npos) << problem;
  EXPECT_NE(problem.find("5 bytes"), std::string::npos) << problem;
}

TEST(ListTree, AFolderThatNoNodeHasIsAnErrorWithItsName) {
  ScratchFolder a, b;
  a.write("ckpt/x", "x");
  b.write("other/x", "x");
  for (const auto& roots : {Names{"/gone"}, Names{"/ckpt", "/gone"}}) {
    try {
      tree_over({&a, &b}, roots);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_input);
      EXPECT_NE(std::string(error.what()).find("/gone"), std::string::npos) << error.what();
    }
  }
}

TEST(ListTree, AFolderThatOneNodeHasIsEnough) {
  ScratchFolder a, b;
  a.write("left/x", "x");
  b.write("right/y", "x");
  const Tree tree = tree_over({&a, &b}, {"/left", "/right"});
  EXPECT_NE(tree.find("/left/x"), nullptr);
  EXPECT_NE(tree.find("/right/y"), nullptr);
}

}  // namespace
}  // namespace unshard
