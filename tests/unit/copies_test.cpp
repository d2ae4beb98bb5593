// Copies of one piece, in files made of a few bytes: what is decided by checksum, what by reading, and who reads it.
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

#include "copies.h"
#include "stored_elements.h"
#include "support/node_files.h"
#include "unshard/file_cache.h"
#include "unshard/in_process_comm.h"

namespace unshard {
namespace {

using test::NodeFiles;
using test::ScratchFolder;
using Names = std::vector<std::string>;

/// A catalog of one-byte-element tensors whose pieces are put in by hand.
struct Checkpoint {
  Source source;
  Catalog catalog;

  FileId file(const std::string& name, std::vector<std::uint32_t> nodes = {0}) {
    ShardFile shard;
    shard.path = "/" + name;
    shard.label = name;
    shard.rank = static_cast<std::uint32_t>(source.files.size());
    shard.nodes = std::move(nodes);
    source.files.push_back(shard);
    source.world_size = static_cast<std::uint32_t>(source.files.size());
    return static_cast<FileId>(source.files.size() - 1);
  }
  TensorId tensor(const std::string& name, Shape shape, DType dtype = DType::u8) {
    catalog.tensors.push_back({name, dtype, shape, 0});
    return static_cast<TensorId>(catalog.tensors.size() - 1);
  }
  /// The whole tensor at the start of the file; `bytes`: of its record.
  Chunk& chunk(TensorId tensor, FileId in_file, std::uint64_t bytes, std::optional<std::uint32_t> crc = std::nullopt) {
    Chunk chunk;
    chunk.tensor = tensor;
    chunk.file = in_file;
    chunk.box = whole(catalog.tensors[tensor].shape);
    chunk.strides = row_major_strides(chunk.box.extent);
    chunk.record_bytes = bytes;
    chunk.has_crc = crc.has_value();
    chunk.record_crc = crc.value_or(0);
    catalog.chunks.push_back(chunk);
    return catalog.chunks.back();
  }
};

struct Outcome {
  Names findings;  ///< `subject: text`
  std::size_t chunks = 0;
  std::uint64_t read_bytes = 0;
};

/// What `ranks` ranks, one to a node, conclude; node n has the disk `disks[n % size]`.
Outcome outcome(const Checkpoint& checkpoint, const std::vector<const ScratchFolder*>& disks, int ranks, CoverageOptions options = {}) {
  Outcome result;
  std::mutex mutex;
  InProcessOptions in_process;
  in_process.ranks_per_node = disks.size() > 1 ? 1 : 0;
  run_ranks(ranks, in_process, [&](Comm& comm) {
    NodeFiles disk(disks[static_cast<std::size_t>(comm.node_of(comm.rank())) % disks.size()]->path());
    FileCache files(disk, checkpoint.source);
    Catalog mine = checkpoint.catalog;
    std::erase_if(mine.chunks, [&](const Chunk& chunk) { return home_of(chunk.tensor, mine.tensors.size(), comm.size()) != comm.rank(); });
    prove_coverage(comm, files, checkpoint.source, mine, options);
    const std::lock_guard lock(mutex);
    Names findings;
    for (const Finding& finding : mine.findings) findings.push_back(finding.subject + ": " + finding.text);
    if (result.chunks > 0 || result.read_bytes > 0) {
      EXPECT_EQ(findings, result.findings);
    }
    result.findings = findings;
    result.chunks += mine.chunks.size();
    result.read_bytes += disk.counters().read_bytes;
  });
  return result;
}

bool says(const Outcome& result, const std::string& part) {
  for (const std::string& text : result.findings) {
    if (text.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(Copies, EqualChecksumsOfEqualGeometryDecideWithoutReading) {
  ScratchFolder disk;  // the files need not even be there
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("scale", {4});
  for (const char* name : {"a", "b", "c"}) checkpoint.chunk(t, checkpoint.file(name), 4, 7);
  const Outcome result = outcome(checkpoint, {&disk}, 1);
  EXPECT_EQ(result.findings, Names{});
  EXPECT_EQ(result.chunks, 1U);
}

TEST(Copies, ChecksumsOfWholeRecordsThatDifferNameTensorAndRank) {
  ScratchFolder disk;
  for (const int ranks : {1, 2, 3}) {
    Checkpoint checkpoint;
    const TensorId t = checkpoint.tensor("scale", {4});
    checkpoint.tensor("empty", {0});
    for (const std::uint32_t crc : {7U, 7U, 9U, 7U})
      checkpoint.chunk(t, checkpoint.file("rank_" + std::to_string(checkpoint.source.files.size())), 4, crc);
    const Outcome result = outcome(checkpoint, {&disk}, ranks, {.compare_payload = false, .deep = false});
    ASSERT_EQ(result.findings.size(), 1U);
    EXPECT_TRUE(says(result, "scale: the copy of rank 2 differs")) << result.findings[0];
    EXPECT_TRUE(says(result, "rank_2"));
  }
}

TEST(Copies, RecordsThatHoldMoreThanThePieceAreRead) {
  ScratchFolder disk;
  disk.write("a", "abcdX");
  disk.write("b", "abcdY");  // another byte after the piece
  disk.write("c", "abceX");
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("scale", {4});
  std::uint32_t crc = 0;
  for (const char* name : {"a", "b", "c"}) checkpoint.chunk(t, checkpoint.file(name), 5, ++crc);
  const Outcome result = outcome(checkpoint, {&disk}, 2);
  ASSERT_EQ(result.findings.size(), 1U);
  EXPECT_TRUE(says(result, "scale: the copy of rank 2 differs"));
  EXPECT_EQ(result.read_bytes, 12U);
  EXPECT_TRUE(outcome(checkpoint, {&disk}, 2, {.compare_payload = false, .deep = false}).findings.empty());
}

TEST(Copies, OtherStridesAreComparedElementByElement) {
  ScratchFolder disk;
  disk.write("rows", "abcdef");     // [[a b c] [d e f]]
  disk.write("columns", "adbecf");  // the same, stored by columns
  disk.write("wrong", "adbefc");
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {2, 3});
  checkpoint.chunk(t, checkpoint.file("rows"), 6, 1);
  checkpoint.chunk(t, checkpoint.file("columns"), 6, 2).strides = {1, 2};
  EXPECT_EQ(outcome(checkpoint, {&disk}, 1).findings, Names{});
  checkpoint.chunk(t, checkpoint.file("wrong"), 6, 3).strides = {1, 2};
  EXPECT_TRUE(says(outcome(checkpoint, {&disk}, 1), "rank 2"));
}

TEST(Copies, BothByteOrdersAreOneValue) {
  ScratchFolder disk;
  disk.write("little", std::string("\x01\x02\x03\x04", 4));
  disk.write("big", std::string("\x02\x01\x04\x03", 4));
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {2}, DType::i16);
  checkpoint.chunk(t, checkpoint.file("little"), 4);
  checkpoint.chunk(t, checkpoint.file("big"), 4).big_endian = true;
  EXPECT_EQ(outcome(checkpoint, {&disk}, 1).findings, Names{});
}

TEST(Copies, TheSameBytesOfTheSameFileNeedNoReading) {
  ScratchFolder disk;
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {4});
  const FileId file = checkpoint.file("a");
  checkpoint.chunk(t, file, 4);
  checkpoint.chunk(t, file, 4);
  EXPECT_EQ(outcome(checkpoint, {&disk}, 1).findings, Names{});
}

TEST(Copies, AnExpandedTensorOfAnySizeIsCompared) {  // shape [2^40, 2^20], one stored element
  ScratchFolder disk;
  disk.write("a", "x");
  disk.write("b", "y");
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {std::uint64_t{1} << 40U, std::uint64_t{1} << 20U});
  for (const char* name : {"a", "b"}) checkpoint.chunk(t, checkpoint.file(name), 1).strides = {0, 0};
  EXPECT_TRUE(says(outcome(checkpoint, {&disk}, 1), "differs"));
}

TEST(Copies, EachNodeReadsItsOwnDisk) {
  ScratchFolder left, right;
  left.write("a", "abcd");
  right.write("b", "abcd");
  right.write("c", "abXd");
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {4});
  checkpoint.chunk(t, checkpoint.file("a", {0}), 4);
  checkpoint.chunk(t, checkpoint.file("b", {1}), 4);
  EXPECT_EQ(outcome(checkpoint, {&left, &right}, 2).findings, Names{});
  checkpoint.chunk(t, checkpoint.file("c", {1}), 4);
  EXPECT_TRUE(says(outcome(checkpoint, {&left, &right}, 2), "rank 2"));
}

TEST(Copies, AFileThatCanNotBeReadIsAFindingWithItsName) {
  ScratchFolder disk;
  disk.write("a", "abcd");
  disk.write("b", "ab");
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {4});
  for (const char* name : {"a", "b"}) checkpoint.chunk(t, checkpoint.file(name), 4);
  EXPECT_TRUE(says(outcome(checkpoint, {&disk}, 2), "b: w can't be read"));
}

TEST(Copies, DeepChecksEveryRecordAgainstItsChecksum) {
  ScratchFolder disk;
  disk.write("a", "123456789");  // CRC-32 cbf43926
  disk.write("b", "123456789");
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {9}), u = checkpoint.tensor("v", {9});
  checkpoint.chunk(t, checkpoint.file("a"), 9, 0xcbf43926U);
  checkpoint.chunk(u, checkpoint.file("b"), 9, 0xcbf43927U);
  EXPECT_EQ(outcome(checkpoint, {&disk}, 2).findings, Names{});
  const Outcome deep = outcome(checkpoint, {&disk}, 2, {.compare_payload = true, .deep = true});
  ASSERT_EQ(deep.findings.size(), 1U);
  EXPECT_TRUE(says(deep, "b: the data of v is damaged"));
}

TEST(Copies, DeepReadsCopiesWhoseChecksumsAgree) {
  ScratchFolder disk;
  disk.write("a", "abcd");
  disk.write("b", "abce");
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("w", {4});
  for (const char* name : {"a", "b"}) checkpoint.chunk(t, checkpoint.file(name), 4, 0xed82cd11U);  // of abcd
  const Outcome deep = outcome(checkpoint, {&disk}, 2, {.compare_payload = true, .deep = true});
  EXPECT_TRUE(says(deep, "w: the copy of rank 1 differs"));
  EXPECT_TRUE(says(deep, "b: the data of w is damaged"));
}

TEST(ProveCoverage, NamesHolesAndOverlaps) {
  ScratchFolder disk;
  Checkpoint checkpoint;
  const FileId a = checkpoint.file("a"), b = checkpoint.file("b");
  const TensorId hole = checkpoint.tensor("with.hole", {8, 2}), overlap = checkpoint.tensor("with.overlap", {8, 2}),
                 fine = checkpoint.tensor("fine", {8, 2});
  const auto rows = [&](TensorId tensor, FileId file, std::uint64_t first, std::uint64_t count) {
    checkpoint.chunk(tensor, file, 16, 1).box = {{first, 0}, {count, 2}};
  };
  rows(hole, a, 0, 4);
  rows(hole, b, 5, 3);
  rows(overlap, a, 0, 5);
  rows(overlap, b, 4, 4);
  rows(fine, a, 0, 4);
  rows(fine, b, 4, 4);
  for (const int ranks : {1, 2, 3, 4}) {
    const Outcome result = outcome(checkpoint, {&disk}, ranks);
    ASSERT_EQ(result.findings.size(), 2U);
    EXPECT_TRUE(says(result, "with.hole: [4:5, 0:2] of [8, 2] is in no file"));
    EXPECT_TRUE(says(result, "with.overlap: [4:5, 0:2] of [8, 2] is in two pieces, [0:5, 0:2] of a and [4:8, 0:2] of b"));
  }
}

TEST(ProveCoverage, MissingFilesExplainHolesInOneLine) {
  ScratchFolder disk;
  Checkpoint checkpoint;
  const FileId a = checkpoint.file("a");
  for (int i = 0; i < 10; ++i) checkpoint.chunk(checkpoint.tensor("w" + std::to_string(i), {8}), a, 4, 1).box = {{0}, {4}};
  checkpoint.source.findings.push_back({Severity::error, "folder", "missing rank 1 of 2", ErrorCode::bad_input});
  for (const int ranks : {1, 3}) {
    const Outcome result = outcome(checkpoint, {&disk}, ranks);
    ASSERT_EQ(result.findings.size(), 1U);
    EXPECT_TRUE(says(result, "10 of 10 tensors"));
    EXPECT_TRUE(says(result, "w0"));
  }
}

TEST(ProveCoverage, ExtraStateMayDifferAndHaveHoles) {
  ScratchFolder disk;
  Checkpoint checkpoint;
  const TensorId t = checkpoint.tensor("layer._extra_state", {4}), u = checkpoint.tensor("other._extra_state12", {4});
  std::uint32_t crc = 0;
  for (const char* name : {"a", "b"}) checkpoint.chunk(t, checkpoint.file(name), 4, ++crc);
  checkpoint.chunk(u, 0, 4, 1).box = {{0}, {2}};
  std::size_t errors = 0;
  run_ranks(1, {}, [&](Comm& comm) {
    NodeFiles files(disk.path());
    FileCache cache(files, checkpoint.source);
    Catalog mine = checkpoint.catalog;
    prove_coverage(comm, cache, checkpoint.source, mine, {});
    for (const Finding& finding : mine.findings) errors += finding.severity == Severity::error ? 1 : 0;
  });
  EXPECT_EQ(errors, 0U);
}

TEST(SameBits, ComparesAcrossBoxesAndCasts) {
  ScratchFolder disk;
  const std::vector<float> values{1, 2, 3, 4};
  const std::vector<std::uint16_t> bf16{0x3f80, 0x4000, 0x4040, 0x4080};
  disk.write("f32", std::string(reinterpret_cast<const char*>(values.data()), 16));
  disk.write("bf16", std::string(reinterpret_cast<const char*>(bf16.data()), 8));
  Checkpoint checkpoint;
  const TensorId wide = checkpoint.tensor("wide", {4}, DType::f32), narrow = checkpoint.tensor("narrow", {4}, DType::bf16);
  const TensorId other = checkpoint.tensor("other", {4}, DType::f32), shorter = checkpoint.tensor("shorter", {3}, DType::f32);
  const FileId f = checkpoint.file("f32"), b = checkpoint.file("bf16");
  const auto part = [&](TensorId tensor, FileId file, std::uint64_t first, std::uint64_t count, std::uint64_t size, std::uint64_t at) {
    Chunk& chunk = checkpoint.chunk(tensor, file, 16);
    chunk.box = {{first}, {count}};
    chunk.position = at * size;
  };
  part(wide, f, 0, 1, 4, 0);
  part(wide, f, 1, 3, 4, 1);
  part(narrow, b, 0, 2, 2, 0);
  part(narrow, b, 2, 2, 2, 2);
  part(other, f, 0, 3, 4, 0);
  part(other, f, 3, 1, 4, 0);  // ends in 1 instead of 4
  part(shorter, f, 0, 3, 4, 0);
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, {}, [&](Comm& comm) {
      NodeFiles files(disk.path());
      FileCache cache(files, checkpoint.source);
      Catalog mine = checkpoint.catalog;
      std::erase_if(mine.chunks,
                    [&](const Chunk& chunk) { return home_of(chunk.tensor, mine.tensors.size(), comm.size()) != comm.rank(); });
      EXPECT_TRUE(same_bits(comm, cache, mine, wide, narrow, mine.tensors[wide].shape, DType::bf16));
      EXPECT_TRUE(same_bits(comm, cache, mine, narrow, wide, mine.tensors[narrow].shape, DType::f32));
      EXPECT_FALSE(same_bits(comm, cache, mine, wide, other, mine.tensors[wide].shape, DType::bf16));
      EXPECT_FALSE(same_bits(comm, cache, mine, wide, shorter, mine.tensors[wide].shape, DType::f32));
      EXPECT_TRUE(same_bits(comm, cache, mine, wide, wide, mine.tensors[wide].shape, DType::bf16));
      EXPECT_TRUE(same_bits(comm, cache, mine, wide, shorter, {3}, DType::f32));
      EXPECT_TRUE(same_bits(comm, cache, mine, other, wide, {3}, DType::f32));
    });
  }
}

TEST(StoredElements, LargeTransposedPiecesComeRowByRow) {  // 3000 x 2000 elements of 2 bytes stored by columns: more than one buffer
  ScratchFolder disk;
  const std::uint64_t rows = 3000, columns = 2000;
  std::string stored(rows * columns * 2, '\0');
  for (std::uint64_t c = 0; c < columns; ++c) {
    for (std::uint64_t r = 0; r < rows; ++r) {
      const auto value = static_cast<std::uint16_t>(r * 31 + c);
      std::memcpy(stored.data() + (c * rows + r) * 2, &value, 2);
    }
  }
  disk.write("a", stored);
  Chunk chunk;
  chunk.box = {{0, 0}, {rows, columns}};
  chunk.strides = {1, rows};
  const auto file = posix_file_system()->open_for_reading(disk.path() + "/a");
  std::uint64_t index = 0, wrong = 0;
  read_elements(*file, chunk, DType::u16, {}, [&](std::span<std::byte> bytes) {
    for (std::size_t i = 0; i < bytes.size(); i += 2, ++index) {
      std::uint16_t value = 0;
      std::memcpy(&value, bytes.data() + i, 2);
      if (value != static_cast<std::uint16_t>(index / columns * 31 + index % columns)) ++wrong;
    }
  });
  EXPECT_EQ(index, rows * columns);
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace unshard
