// Counting NaN and infinities in the tensors of a catalog; check_test.cpp has the codes of each element type.
#include "non_finite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "support/memory_file_system.h"
#include "unshard/file_cache.h"

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
    return prove_coverage(*self_comm(), files, source, catalog, {.compare_payload = true, .deep = true}).non_finite[0];
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

TEST(NonFinite, IsCountedInPiecesCutAnywhere) {
  const std::vector<double> values{1, infinity, nan, nan, 5};
  const auto bytes = std::as_bytes(std::span(values));
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    NonFiniteCounter counter(DType::f64);
    for (std::size_t at = 0; at < bytes.size(); at += piece) counter.add(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(counter.total().nan, 2U) << piece;
    EXPECT_EQ(counter.total().infinite, 1U) << piece;
  }
}

TEST(NonFinite, ManyAreCounted) {
  const std::vector<std::uint16_t> bf16(100'000, 0x7FC0);
  EXPECT_EQ(count_non_finite(std::as_bytes(std::span(bf16)), DType::bf16).nan, bf16.size());
  const std::vector<std::uint8_t> e5m2(100'001, 0xFC);
  EXPECT_EQ(count_non_finite(std::as_bytes(std::span(e5m2)), DType::f8_e5m2).infinite, e5m2.size());
}

TEST(NonFinite, ADeepCheckReadsEveryByteOnceAndGoesOnAfterAnError) {
  Stored stored({nan, 1, nan, 1}, {2}, {1});
  Chunk copy = stored.catalog.chunks.front();
  copy.position = 8;  // the other half of the record
  stored.catalog.chunks.push_back(copy);
  EXPECT_EQ(stored.count().nan, 1U) << "of one copy";
  EXPECT_EQ(stored.disk.counters().read_bytes, 16U);
  stored.disk.put("/other", std::string(8, '\0'));
  stored.source.files.push_back({"/other", "other", 8, 0, {0}, {}});
  stored.catalog.tensors.push_back({"v", DType::f32, {2}, 0});
  copy.tensor = 1;
  copy.file = 1;
  copy.position = 0;
  stored.catalog.chunks = {stored.catalog.chunks.front(), copy};
  stored.disk.fail(test::Call::read, "/other");
  EXPECT_EQ(stored.count().nan, 1U);
  ASSERT_EQ(stored.catalog.findings.size(), 1U);
  EXPECT_EQ(stored.catalog.findings[0].subject, "other");
  EXPECT_NE(stored.catalog.findings[0].text.find("v can't be read"), std::string::npos) << stored.catalog.findings[0].text;
}

}  // namespace
}  // namespace unshard
