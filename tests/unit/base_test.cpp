// The words everything is built from: shapes, boxes, printable names, ranges of numbers.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "unshard/error.h"
#include "unshard/tensor.h"

namespace unshard {
namespace {

TEST(Printable, ShowsControlCharactersAndBrokenUtf8AsEscapes) {
  EXPECT_EQ(printable("a\x1b[31mb\n"), "a\\x1b[31mb\\x0a");
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "\\x00x");
  EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(printable("\xc3("), "\\xc3(");
  EXPECT_EQ(printable("\xe2\x80\xae" "x"), "\\xe2\\x80\\xaex");  // right-to-left override
  EXPECT_EQ(printable("\xc2\x9b" "1m"), "\\xc2\\x9b" "1m");      // C1 control sequence introducer
}

TEST(Printable, CutsLongNames) { EXPECT_EQ(printable("abcdef", 3), "abc..."); }

TEST(Ranges, JoinNeighbours) {
  EXPECT_EQ(as_ranges({0, 1, 2, 5, 7, 8}), "0-2, 5, 7-8");
  EXPECT_EQ(as_ranges({1, 3, 5}, 2), "1, 3 and 1 more");
  EXPECT_EQ(as_ranges({}), "");
}

TEST(Shape, CountsElementsWithoutWrappingRound) {
  EXPECT_EQ(volume({}), 1U);
  EXPECT_EQ(volume({3, 0, std::numeric_limits<std::uint64_t>::max()}), 0U);
  EXPECT_THROW((void)volume({std::uint64_t{1} << 32U, std::uint64_t{1} << 32U}), Error);
  EXPECT_THROW((void)volume({std::uint64_t{1} << 62U, 2}), Error);
}

TEST(Shape, RefusesTooManyDimensions) {
  const std::array<std::uint64_t, 9> nine{1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_THROW((void)Shape(nine), Error);
}

TEST(Box, IntersectsAndStaysInside) {
  EXPECT_EQ(intersect({{0, 4}, {2, 4}}, {{1, 0}, {5, 6}}), (Box{{1, 4}, {1, 2}}));
  EXPECT_FALSE(intersect({{0, 0}, {2, 2}}, {{2, 0}, {1, 2}}));
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
  EXPECT_TRUE(inside({{1}, {2}}, {3}));
  EXPECT_FALSE(inside({{std::numeric_limits<std::uint64_t>::max()}, {2}}, {3}));
}

TEST(DTypes, HaveNamesInBothWorlds) {
  EXPECT_EQ(dtype_from_torch("bfloat16"), DType::bf16);
  EXPECT_EQ(dtype_from_safetensors("F8_E4M3"), DType::f8_e4m3);
  EXPECT_FALSE(dtype_from_safetensors(""));
}

}  // namespace
}  // namespace unshard
