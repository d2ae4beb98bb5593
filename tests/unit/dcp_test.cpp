// Checkpoints of torch.distributed.checkpoint as catalogs: parts on the disks of several nodes, what is read and what is left alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/dcp_text.h"
#include "support/node_files.h"
#include "support/torch_archive.h"
#include "unshard/checkpoint_format.h"
#include "unshard/file_cache.h"
#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

using test::NodeFiles;
using test::ScratchFolder;
using namespace unshard::testing;
using namespace unshard::testing::pickled;
using Names = std::vector<std::string>;

const std::string cases = UNSHARD_CASES;

struct Whole {
  Source source;
  Catalog catalog;  ///< the chunks of all ranks
};

/// `disks`: of each node, one rank each; the folder is `/c` on all of them.
Whole read_whole(int ranks, const Names& disks) {
  std::vector<Whole> of_rank(static_cast<std::size_t>(ranks));
  InProcessOptions in_process;
  in_process.ranks_per_node = disks.size() > 1 ? 1 : 0;
  run_ranks(ranks, in_process, [&](Comm& comm) {
    NodeFiles disk(disks[static_cast<std::size_t>(comm.node_of(comm.rank())) % disks.size()]);
    Whole& mine = of_rank[static_cast<std::size_t>(comm.rank())];
    const Tree tree = list_tree(comm, disk, {"/c"});
    mine.source = discover(tree, "auto");
    read_index_files(comm, disk, tree, mine.source);
    FileCache files(disk, mine.source);
    mine.catalog = read_catalog(comm, files, mine.source);
    prove_coverage(comm, files, mine.source, mine.catalog, {});
  });
  Whole whole = std::move(of_rank.front());
  for (std::size_t rank = 1; rank < of_rank.size(); ++rank) {
    const auto& chunks = of_rank[rank].catalog.chunks;
    whole.catalog.chunks.insert(whole.catalog.chunks.end(), chunks.begin(), chunks.end());
  }
  return whole;
}

Names texts(const Whole& whole, Severity severity) {
  Names found;
  for (const auto& findings : {whole.source.findings, whole.catalog.findings}) {
    for (const Finding& finding : findings) {
      if (finding.severity == severity) found.push_back(finding.subject + ": " + finding.text);
    }
  }
  return found;
}

bool any_says(const Names& all, const std::string& part) {
  return std::any_of(all.begin(), all.end(), [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

std::string text_of(const Whole& whole) {
  std::string text;
  for (const TensorRow& row : whole.catalog.tensors) text += row.name + " " + to_string(row.shape) + "\n";
  for (const Chunk& chunk : whole.catalog.chunks)
    text += whole.source.files[chunk.file].label + " " + std::to_string(chunk.tensor) + " " + to_string(chunk.box) + " " +
            std::to_string(chunk.position) + "\n";
  return text;
}

/// An item: a float32 tensor of `shape`, full of zeros.
std::string item(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = count;
    count *= shape[d];
  }
  return torch_archive(whole(tensor(storage("0", count), 0, shape, strides)),
                       {{"data/0", std::string(static_cast<std::size_t>(count) * 4, '\0')}});
}

/// Two tensors: the weight `w` of 4 rows in `__0_0.distcp`, the optimizer's state of it in `__1_0.distcp`.
std::string small_metadata(std::int64_t position, const std::string& transforms = none) {
  return dcp_metadata({{"w", dcp_tensor({4}, {{{0}, {4}}})}, {"optimizer.state.exp_avg.w", dcp_tensor({4}, {{{0}, {4}}})}},
                      {dcp_place("w", torch_size({0}), "__0_0.distcp", position, static_cast<std::int64_t>(item({4}).size()), transforms),
                       dcp_place("optimizer.state.exp_avg.w", torch_size({0}), "__1_0.distcp", 0, 100)});
}

TEST(Dcp, IsTheSameForAnyRanksAndDisks) {
  const std::string input = cases + "/dcp/tp-and-fsdp/input";
  ScratchFolder shared, left, right;
  shared.copy(input, "c");
  left.copy(input + "/.metadata", "c/.metadata");
  left.copy(input + "/__1_0.distcp", "c/__1_0.distcp");
  for (const char* name : {"__0_0.distcp", "__2_0.distcp", "__3_0.distcp"}) right.copy(input + "/" + name, std::string("c/") + name);
  const Whole whole = read_whole(1, {shared.path()});
  EXPECT_EQ(texts(whole, Severity::error), Names{});
  EXPECT_EQ(whole.source.files.size(), 4U);
  for (const int ranks : {2, 3}) EXPECT_EQ(text_of(read_whole(ranks, {shared.path()})), text_of(whole));
  const Whole apart = read_whole(2, {left.path(), right.path()});
  EXPECT_EQ(texts(apart, Severity::error), Names{});
  EXPECT_EQ(text_of(apart), text_of(whole));
}

TEST(Dcp, TwoNodesWithDifferentMetadataAreRefused) {
  ScratchFolder left, right;
  for (const ScratchFolder* disk : {&left, &right}) disk->write("c/__0_0.distcp", item({4}) + item({4}));
  left.write("c/.metadata", small_metadata(0));
  right.write("c/.metadata", small_metadata(static_cast<std::int64_t>(item({4}).size())));
  EXPECT_TRUE(any_says(texts(read_whole(2, {left.path(), right.path()}), Severity::error), "two different files of this name"));
}

TEST(Dcp, FilesOfTheOptimizerAreNotNeeded) {
  ScratchFolder disk;
  disk.write("c/.metadata", small_metadata(3));
  disk.write("c/__0_0.distcp", "..." + item({4}));
  const Whole whole = read_whole(2, {disk.path()});
  EXPECT_EQ(texts(whole, Severity::error), Names{});
  EXPECT_TRUE(any_says(texts(whole, Severity::note), "__1_0.distcp"));
  ASSERT_EQ(whole.catalog.tensors.size(), 1U);
  EXPECT_EQ(whole.catalog.tensors[0].name, "w");
  ASSERT_EQ(whole.source.set_aside.size(), 1U);
  EXPECT_EQ(whole.source.set_aside[0].reason, "optimizer state");
}

TEST(Dcp, FilesThatNoMetadataNamesAreLeftOversAndNotRead) {
  ScratchFolder disk;
  disk.write("c/.metadata", small_metadata(0));
  disk.write("c/__0_0.distcp", item({4}));
  disk.write("c/__7_0.distcp", "junk");
  const Whole whole = read_whole(1, {disk.path()});
  EXPECT_EQ(texts(whole, Severity::error), Names{});
  EXPECT_TRUE(any_says(texts(whole, Severity::note), "__7_0.distcp"));
}

TEST(Dcp, AnItemThatIsNotWhatTheMetadataSaysIsRefusedByName) {
  ScratchFolder disk;
  disk.write("c/.metadata", small_metadata(0));
  const std::string other = item({3});
  disk.write("c/__0_0.distcp", other + std::string(item({4}).size() - other.size(), '\0'));
  EXPECT_TRUE(any_says(texts(read_whole(2, {disk.path()}), Severity::error), "w: "))
      << texts(read_whole(1, {disk.path()}), Severity::error).front();
  disk.write("c/__0_0.distcp", item({2, 2}));
  EXPECT_TRUE(any_says(texts(read_whole(2, {disk.path()}), Severity::error), "w: "));
}

TEST(Dcp, AShortFileIsRefusedWithItsSize) {
  ScratchFolder disk;
  disk.write("c/.metadata", small_metadata(0));
  disk.write("c/__0_0.distcp", item({4}).substr(0, 50));
  EXPECT_TRUE(any_says(texts(read_whole(2, {disk.path()}), Severity::error), "__0_0.distcp: has 50 bytes"));
}

TEST(Dcp, TransformedItemsAreRefusedByTheirTransform) {
  ScratchFolder disk;
  disk.write("c/.metadata", small_metadata(0, list({text("stream.zstd/1")})));
  disk.write("c/__0_0.distcp", item({4}));
  EXPECT_TRUE(any_says(texts(read_whole(1, {disk.path()}), Severity::error), "w: is encoded by stream.zstd/1"));
}

TEST(Dcp, ASaveThatDidNotFinishIsCalledThat) {
  ScratchFolder disk;
  disk.write("c/.metadata.tmp", "x");
  disk.write("c/__0_0.distcp", item({4}));
  EXPECT_TRUE(any_says(texts(read_whole(1, {disk.path()}), Severity::error), "the save did not finish"));
}

TEST(Dcp, RanksMayEachHaveMetadataOfTheirOwn) {
  ScratchFolder disk;
  const auto size = static_cast<std::int64_t>(item({2}).size());
  for (const std::int64_t rank : {0, 1}) {
    const std::string file = "__" + std::to_string(rank) + "_0.distcp";
    disk.write("c/__" + std::to_string(rank) + ".metadata",
               dcp_metadata({{"w", dcp_tensor({4}, {{{2 * rank}, {2}}})}}, {dcp_place("w", torch_size({2 * rank}), file, 0, size)}));
    disk.write("c/" + file, item({2}));
  }
  const Whole whole = read_whole(2, {disk.path()});
  EXPECT_EQ(texts(whole, Severity::error), Names{});
  EXPECT_EQ(whole.catalog.chunks.size(), 2U);
}

}  // namespace
}  // namespace unshard
