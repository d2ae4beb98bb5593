// From a byte range of an output file to reads and copies.
#include "assemble.h"

#include <gtest/gtest.h>

#include <cstring>

#include "fetch.h"
#include "strided.h"
#include "support/memory_file_system.h"
#include "support/stored_model.h"
#include "unshard/error.h"

namespace unshard::test {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(BoxesOfRange, SplitsAtRows) {
  EXPECT_EQ(boxes_of_range({3, 4}, 0, 12), (std::vector<Box>{{{0, 0}, {3, 4}}}));
  EXPECT_EQ(boxes_of_range({3, 4}, 2, 11), (std::vector<Box>{{{0, 2}, {1, 2}}, {{1, 0}, {1, 4}}, {{2, 0}, {1, 3}}}));
  EXPECT_EQ(boxes_of_range({3, 4}, 5, 7), (std::vector<Box>{{{1, 1}, {1, 2}}}));
  EXPECT_EQ(boxes_of_range({3, 4}, 5, 5), (std::vector<Box>{}));
  EXPECT_EQ(boxes_of_range({}, 0, 1), (std::vector<Box>{{{}, {}}}));
}

TEST(BoxesOfRange, CoversEveryRangeInOrderWithFewBoxes) {
  const Shape shape{3, 2, 4};
  const Shape strides = row_major_strides(shape);
  for (std::uint64_t first = 0; first < 24; ++first) {
    for (std::uint64_t end = first + 1; end <= 24; ++end) {
      std::uint64_t next = first;
      const std::vector<Box> boxes = boxes_of_range(shape, first, end);
      for (const Box& box : boxes)
        for (std::uint64_t i = 0; i < box.extent[0]; ++i)
          for (std::uint64_t j = 0; j < box.extent[1]; ++j)
            for (std::uint64_t k = 0; k < box.extent[2]; ++k)
              ASSERT_EQ((box.offset[0] + i) * strides[0] + (box.offset[1] + j) * strides[1] + box.offset[2] + k, next++);
      EXPECT_EQ(next, end);
      EXPECT_LE(boxes.size(), 5U);
    }
  }
}

TEST(BoxesOfRange, CountsBeyond32Bits) {
  const std::uint64_t rows = std::uint64_t{1} << 40;
  EXPECT_EQ(boxes_of_range({rows, 8}, rows * 4, rows * 4 + 8), (std::vector<Box>{{{rows / 2, 0}, {1, 8}}}));
}

TEST(CopyStrided, TransposesEveryElementSize) {
  for (const std::size_t size : {1, 2, 4, 8, 16}) {
    constexpr std::uint64_t rows = 37, columns = 70;
    std::vector<std::byte> from(rows * columns * size), to(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
    copy_strided(to.data(), {1, rows}, from.data(), {columns, 1}, {rows, columns}, size);
    for (std::uint64_t r = 0; r < rows; ++r)
      for (std::uint64_t c = 0; c < columns; ++c)
        ASSERT_EQ(std::memcmp(&to[(c * rows + r) * size], &from[(r * columns + c) * size], size), 0) << r << " " << c << " " << size;
  }
}

TEST(CopyStrided, RepeatsWhereAStrideIsZeroAndCopiesOneElement) {
  const std::string from = "abc";
  std::string to = "......";
  copy_strided(reinterpret_cast<std::byte*>(to.data()), {3, 1}, reinterpret_cast<const std::byte*>(from.data()), {0, 1}, {2, 3}, 1);
  EXPECT_EQ(to, "abcabc");
  copy_strided(reinterpret_cast<std::byte*>(to.data()), {}, reinterpret_cast<const std::byte*>(from.data() + 2), {}, {}, 1);
  EXPECT_EQ(to, "cbcabc");
}

/// One target in one output file, over a stored model.
class Assembled {
 public:
  Assembled(StoredModel model, Target target, std::uint64_t header_bytes = 8) : model_(std::move(model)) {
    targets_.targets = {std::move(target)};
    plan_.layout = lay_out_for_test(targets_, 1 << 30, header_bytes, 0);
    catalog_ = model_.catalog_of(0, 1);
    table_.first.assign(model_.tensors.size() + 1, 0);
    for (const Chunk& chunk : catalog_.chunks)
      for (std::size_t t = chunk.tensor + 1; t < table_.first.size(); ++t) ++table_.first[t];
    table_.chunks = catalog_.chunks;
    for (std::size_t f = 0; f < model_.contents.size(); ++f) disk_.put(model_.source.files[f].path, model_.contents[f]);
    expected_ = expected_files(model_, targets_, plan_.layout)[0];
  }

  [[nodiscard]] std::string range(std::uint64_t begin, std::uint64_t end, std::size_t scratch_bytes = 4096) {
    std::vector<std::byte> output(end - begin, std::byte{'?'});
    Buffers buffers;
    buffers.scratch.resize(scratch_bytes);
    read_ = assemble(files_, assembler().copies(0, begin, end), output, buffers);
    return text_of(output);
  }

  [[nodiscard]] Assembler assembler() const { return {catalog_.tensors, targets_, plan_, table_}; }
  [[nodiscard]] const std::string& expected() const { return expected_; }
  [[nodiscard]] std::uint64_t size() const { return expected_.size(); }
  [[nodiscard]] Reads read() const { return read_; }
  MemoryFileSystem& disk() { return disk_; }

 private:
  StoredModel model_;
  Targets targets_;
  Plan plan_;
  Catalog catalog_;
  ChunkTable table_;
  MemoryFileSystem disk_;
  FileCache files_{disk_, model_.source};
  std::string expected_;
  Reads read_;
};

Target copied(TensorId source, const Shape& shape, DType dtype) {
  return {"target", dtype, shape, {copy_of(source, shape)}};
}

Target transposed(TensorId source, const Shape& shape, DType dtype) {
  Term term{source, {0, 0}, {0, 0}, {{shape[1], 1, 0, 1, 1}, {shape[0], 0, 1, 1, 1}}};
  return {"target", dtype, {shape[1], shape[0]}, {term}};
}

/// A [6, 10] tensor cut into 2 x 2 boxes of which one is transposed and one big-endian.
StoredModel four_boxes(DType dtype) {
  StoredModel model({"a.pt", "b.pt"});
  const TensorId id = model.add(dtype, {6, 10});
  model.store(id, {{0, 0}, {4, 3}}, 0);
  model.store(id, {{0, 3}, {4, 7}}, 1, {{1, 0}, {}, false});
  model.store(id, {{4, 0}, {2, 3}}, 1, {{}, {0, 2}, true});
  model.store(id, {{4, 3}, {2, 7}}, 0, {{}, {}, true});
  return model;
}

TEST(Assemble, GivesEveryRangeOfATensorEvenInsideElements) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Assembled target(four_boxes(DType::f32), copied(0, {6, 10}, dtype));
    for (std::uint64_t begin = 8; begin < target.size(); begin += 3)
      for (std::uint64_t end = begin + 1; end <= target.size(); end += 5)
        ASSERT_EQ(target.range(begin, end), target.expected().substr(begin, end - begin)) << begin << " " << end;
  }
}

TEST(Assemble, WorksWithTheSmallestScratch) {
  Assembled target(four_boxes(DType::f64), transposed(0, {6, 10}, DType::f16));
  EXPECT_EQ(target.range(8, target.size(), 64), target.expected().substr(8));
}

TEST(Assemble, ReadsARunStraightAndOnce) {
  StoredModel model({"a.pt"});
  const TensorId id = model.add(DType::f32, {64, 64});
  model.store(id, {{0, 0}, {64, 64}}, 0);
  Assembled target(std::move(model), copied(id, {64, 64}, DType::f32));
  EXPECT_EQ(target.range(8 + 1024, 8 + 9216), target.expected().substr(8 + 1024, 8192));
  EXPECT_EQ(target.disk().counters().reads, 1U);
  EXPECT_EQ(target.disk().counters().read_bytes, 8192U);
}

TEST(Assemble, SaysWhatItReads) {
  StoredModel model({"a.pt"});
  const TensorId id = model.add(DType::f32, {50, 40});
  model.store(id, {{0, 0}, {20, 40}}, 0, {{}, {0, 5}, false});
  model.store(id, {{20, 0}, {30, 40}}, 0, {{1, 0}, {0, 300}, false});
  Assembled target(std::move(model), copied(id, {50, 40}, DType::bf16));
  EXPECT_EQ(target.range(8 + 500, 8 + 3000, 1000), target.expected().substr(8 + 500, 2500));
  EXPECT_EQ(target.read().count, target.disk().counters().reads);
  EXPECT_EQ(target.read().bytes, target.disk().counters().read_bytes);
}

TEST(Assemble, ReadsDataThatRepeatsOnce) {
  StoredModel model({"a.pt"});
  const TensorId id = model.add(
      DType::f32, {5, 251 * 7});  // number_at() repeats only with another period, so the rows are stored as one and compared below
  model.store(id, {{0, 0}, {1, 251 * 7}}, 0);
  model.chunks[0].box.extent[0] = 5;
  model.chunks[0].strides[0] = 0;
  Assembled target(std::move(model), copied(id, {5, 251 * 7}, DType::f32));
  const std::string all = target.range(8, target.size(), 1 << 16);
  const std::string row = target.expected().substr(8, 251 * 7 * 4);
  EXPECT_EQ(all, row + row + row + row + row);
  EXPECT_EQ(target.disk().counters().read_bytes, row.size());
}

TEST(Assemble, NamesATargetWhoseChunksAreMissing) {
  StoredModel model = four_boxes(DType::f32);
  model.chunks.pop_back();
  Assembled target(std::move(model), copied(0, {6, 10}, DType::f32));
  try {
    (void)target.range(8, target.size());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_EQ(std::string(error.what()), "target: of the elements 0 to 60 46 are in the chunks at hand, expected 60");
  }
}

/// A transposed [512, 512] tensor: a small piece would read 4 bytes at a time.
TEST(NextPiece, GrowsWhileThatMakesReadsLonger) {
  StoredModel model({"a.pt"});
  const TensorId id = model.add(DType::f32, {512, 512});
  model.store(id, {{0, 0}, {512, 512}}, 0);
  Assembled target(model, transposed(id, {512, 512}, DType::f32));
  const OutputPiece piece = next_piece(target.assembler(), 0, 8, target.size(), {4096, 1 << 20, 1 << 20});
  EXPECT_GE(piece.end - piece.begin, std::uint64_t{512 * 1024});
  Assembled plain(model, copied(id, {512, 512}, DType::f32));
  EXPECT_EQ(next_piece(plain.assembler(), 0, 8, plain.size(), {131072, 1 << 20, 1 << 20}).end, 131072U);
}

TEST(NextPiece, PiecesCoverARangeAndEndAtMultiples) {
  Assembled target(four_boxes(DType::f32), copied(0, {6, 10}, DType::f32));
  const Assembler assembler = target.assembler();
  std::uint64_t at = 8;
  while (at < target.size()) {
    const OutputPiece piece = next_piece(assembler, 0, at, target.size(), {64, 100, 64});
    EXPECT_EQ(piece.begin, at);
    EXPECT_TRUE(piece.end % 64 == 0 || piece.end == target.size()) << piece.end;
    ASSERT_GT(piece.end, at);
    at = piece.end;
  }
}

}  // namespace
}  // namespace unshard::test
