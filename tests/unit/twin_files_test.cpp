// The file of one rank copied over that of another: the shapes fit, and only the data tells.
#include "twin_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/memory_file_system.h"
#include "support/node_files.h"
#include "unshard/checkpoint_format.h"
#include "unshard/file_cache.h"
#include "unshard/in_process_comm.h"

namespace unshard::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string cases = UNSHARD_CASES;

/// What is said of twins in the checkpoint there.
std::vector<std::string> twins_below(const std::string& folder, int ranks) {
  std::vector<std::string> twins;
  run_ranks(ranks, {}, [&](Comm& comm) {
    const auto disk = posix_file_system();
    const Source source = discover(list_tree(comm, *disk, {folder}), "auto");
    FileCache files(*disk, source);
    const Catalog catalog = read_catalog(comm, files, source);
    if (comm.rank() != ranks - 1) return;
    for (const Finding& finding : catalog.findings) {
      if (finding.text.find("the same data") != std::string::npos) twins.push_back(finding.subject + " " + finding.text);
    }
  });
  return twins;
}

/// What is said of twins in a copy of a Megatron case in which the file of rank folder `over` is that of `from` ("": none is copied).
std::vector<std::string> twins_in(const std::string& name, const std::string& from, const std::string& over, int ranks) {
  ScratchFolder disk;
  disk.copy(cases + "/megatron/" + name + "/input/run", "run");
  for (const auto& entry : fs::recursive_directory_iterator(disk.path())) {
    if (from.empty() || entry.path().parent_path().filename() != from) continue;
    const fs::path other = entry.path().parent_path().parent_path() / over / entry.path().filename();
    EXPECT_TRUE(fs::exists(other)) << other;
    fs::copy(entry.path(), other, fs::copy_options::overwrite_existing);
  }
  return twins_below(disk.path(), ranks);
}

TEST(TwinFiles, ACopyOfAnotherRanksFileIsNamedWithIt) {
  for (int ranks = 1; ranks <= 3; ++ranks) {
    EXPECT_THAT(twins_in("torch_llama_tp2_pp2", "mp_rank_00_000", "mp_rank_00_001", ranks), ElementsAre(HasSubstr("other layers")));
    EXPECT_THAT(twins_in("torch_mha_tp2", "mp_rank_00", "mp_rank_01", ranks),
                ElementsAre(AllOf(HasSubstr("mp_rank_01/"), HasSubstr("as run/iter_0000010/mp_rank_00/"))));
    EXPECT_THAT(twins_in("torch_llama_tp2_pp2", "mp_rank_01_000", "mp_rank_00_000", ranks), ElementsAre(HasSubstr("mp_rank_00_000")));
  }
}

TEST(TwinFiles, TheFilesOfATrainingAreNone) {
  for (const char* name : {"torch_mha_tp2", "torch_llama_tp2_pp2", "torch_qwen3_moe_pp2_ep2", "torch_vpp2_pp2"})
    EXPECT_THAT(twins_in(name, "", "", 2), IsEmpty()) << name;
}

/// What a file holds whose only record has 32 bytes, for row `row` of a tensor.
Piece piece_of_row(const std::string& name, std::uint64_t row) {
  Chunk chunk;
  chunk.box = {{row, 0}, {1, 8}};
  chunk.strides = {8, 1};
  chunk.record_bytes = 32;
  chunk.record_crc = 7;
  chunk.has_crc = true;
  return {name, DType::f32, {2, 8}, {chunk}};
}

/// How many twins there are among two files of this content, the first for row 0 of `w`.
std::size_t twins_with(const std::string& content, const Piece& second, bool among_tensors = false) {
  MemoryFileSystem disk;
  Source source;
  std::vector<FilePrint> prints;
  for (FileId file = 0; file < 2; ++file) {
    ShardFile shard;
    shard.path = shard.label = "/rank" + std::to_string(file);
    disk.put(shard.path, content);
    source.files.push_back(shard);
    prints.push_back(print_of(file, std::vector<Piece>{file == 0 ? piece_of_row("w", 0) : second}).value());
  }
  std::size_t found = 0;
  run_ranks(1, {}, [&](Comm& comm) {
    FileCache files(disk, source);
    found = find_twins(comm, files, source, prints, among_tensors).copies.size();
  });
  return found;
}

const std::string trained = "0123456789abcdef0123456789abcdef";

TEST(TwinFiles, EqualDataForOtherRowsIsOneUnlessItIsUniform) {
  EXPECT_EQ(twins_with(trained, piece_of_row("w", 1)), 1U);
  EXPECT_EQ(twins_with(std::string(32, '\0'), piece_of_row("w", 1)), 0U);
  EXPECT_EQ(twins_with("onesonesonesonesonesonesonesones", piece_of_row("w", 1)), 0U);
}

TEST(TwinFiles, AReplicaIsNone) {
  EXPECT_EQ(twins_with(trained, piece_of_row("w", 0), true), 0U);
}

TEST(TwinFiles, EqualDataForOtherTensorsIsOneOnlyWhereFilesHoldWholeStages) {
  EXPECT_EQ(twins_with(trained, piece_of_row("tied", 0), false), 0U);
  EXPECT_EQ(twins_with(trained, piece_of_row("other_layer", 0), true), 1U);
}

TEST(TwinFiles, WithoutAChecksumNothingIsSaid) {
  Piece piece = piece_of_row("w", 0);
  piece.chunks[0].has_crc = false;
  EXPECT_FALSE(print_of(0, std::vector<Piece>{piece}));
}

}  // namespace
}  // namespace unshard::test
