// Counting NaN and infinities in the tensors of a catalog; check_test.cpp has the codes of each element type.
#include "non_finite.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "support/memory_file_system.h"

namespace unshard {
namespace {

struct Stored {
  test::MemoryFileSystem disk;
  Source source;
  Catalog catalog;

  /// One tensor of `shape` whose elements lie in a file of `elements`.
  Stored(const std::vector<float>& elements, const Shape& shape, const Shape& strides) {
    std::string bytes(elements.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), elements.data(), bytes.size());
    disk.put("/file", bytes);
    source.files.push_back({"/file", "file", bytes.size(), 0, {0}, {}});
    catalog.tensors.push_back({"w", DType::f32, shape, 0});
    Chunk chunk;
    chunk.box = whole(shape);
    chunk.strides = strides;
    chunk.record_bytes = bytes.size();
    catalog.chunks.push_back(chunk);
  }

  NonFinite count() {
    FileCache files(disk, source);
    return count_non_finite(*self_comm(), files, source, catalog)[0];
  }
};

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST(NonFinite, IsCountedByElementOfTheTensor) {
  const NonFinite every_second = Stored({nan, 0, infinity, nan, nan, 1}, {3}, {2}).count();
  EXPECT_EQ(every_second.nan, 2U);
  EXPECT_EQ(every_second.infinite, 1U);
  EXPECT_EQ(Stored({nan, 0}, {1000, 2}, {0, 1}).count().nan, 1000U);
}

TEST(NonFinite, AViewWhoseRowsOverlapIsNotReadForEver) {
  Stored stored(std::vector<float>(5 << 18), {1 << 20, 1 << 17}, {1, 1});
  EXPECT_EQ(stored.count().nan, 0U);
  EXPECT_EQ(stored.disk.counters().read_bytes, 0U);
}

}  // namespace
}  // namespace unshard
