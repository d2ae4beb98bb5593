#include "unshard/arithmetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "arithmetic/small_floats.h"
#include "support/safetensors_text.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float nan_f = std::numeric_limits<float>::quiet_NaN();
constexpr float inf_f = std::numeric_limits<float>::infinity();
using testing::bytes_of;

Difference compare(const std::string& a, DType a_dtype, const std::string& b, DType b_dtype, Tolerance tolerance = {},
                   bool like_dtype = false) {
  return arithmetic().compare(std::as_bytes(std::span(a)), a_dtype, std::as_bytes(std::span(b)), b_dtype, tolerance, like_dtype);
}
Difference compare_f32(std::initializer_list<float> a, std::initializer_list<float> b, Tolerance tolerance = {}) {
  return compare(bytes_of<float>(a), DType::f32, bytes_of<float>(b), DType::f32, tolerance);
}

TEST(Arithmetic, CountsWhatIsBeyondTheToleranceOfTheSecondSide) {
  // limits: 0.5 + 0.25 * |b|
  const Tolerance tolerance{0.5, 0.25};
  EXPECT_EQ(compare_f32({5.5F}, {4.0F}, tolerance).count, 0U);  // exactly at 1.5
  EXPECT_EQ(compare_f32({std::nextafterf(5.5F, 9.0F)}, {4.0F}, tolerance).count, 1U);
  EXPECT_EQ(compare_f32({1.0F}, {2.0F}, {0, 0.5}).count, 0U);
  EXPECT_EQ(compare_f32({2.0F}, {1.0F}, {0, 0.5}).count, 1U);
}

TEST(Arithmetic, SaysWhereTheWorstIsAndHowBad) {
  const Difference got = compare_f32({1, 2, 3, 4}, {1, 2.5F, 2, 4});
  EXPECT_EQ(got.count, 2U);
  EXPECT_EQ(got.worst_position, 2U);
  EXPECT_DOUBLE_EQ(got.max_abs, 1.0);
  EXPECT_DOUBLE_EQ(got.max_rel, 0.5);
  EXPECT_DOUBLE_EQ(got.worst_a, 3.0);
  EXPECT_DOUBLE_EQ(got.worst_b, 2.0);
}

TEST(Arithmetic, SumsOverFinitePairs) {
  const Difference got = compare_f32({1, 2, nan_f}, {3, 4, 5}, {1e30, 0});
  EXPECT_EQ(got.pairs, 2U);
  EXPECT_DOUBLE_EQ(got.dot, 11.0);
  EXPECT_DOUBLE_EQ(got.square_a, 5.0);
  EXPECT_DOUBLE_EQ(got.square_b, 25.0);
  EXPECT_DOUBLE_EQ(got.square_difference, 8.0);
}

TEST(Arithmetic, TakesNanAndInfinityOnlyForThemselves) {
  const Tolerance wide{1e30, 1e30};
  EXPECT_EQ(compare_f32({nan_f, inf_f, -inf_f}, {nan_f, inf_f, -inf_f}, wide).count, 0U);
  EXPECT_EQ(compare_f32({nan_f}, {1}, wide).count, 1U);
  EXPECT_EQ(compare_f32({1}, {nan_f}, wide).count, 1U);
  EXPECT_EQ(compare_f32({1}, {inf_f}, wide).count, 1U);
  EXPECT_EQ(compare_f32({inf_f}, {1}, wide).count, 1U);
  EXPECT_EQ(compare_f32({inf_f}, {-inf_f}, wide).count, 1U);
  EXPECT_EQ(compare_f32({nan_f}, {inf_f}, wide).count, 1U);
  EXPECT_EQ(compare_f32({nan_f}, {1}, wide).max_abs, infinity);
}

TEST(Arithmetic, TakesBothZerosForOne) {
  EXPECT_EQ(compare_f32({0.0F}, {-0.0F}, {0, 0}).count, 0U);
}

TEST(Arithmetic, ComparesAcrossTypesByValue) {
  EXPECT_EQ(compare(bytes_of<float>({1.5F, -2}), DType::f32, bytes_of<std::uint16_t>({0x3FC0, 0xC000}), DType::bf16, {0, 0}).count, 0U);
  EXPECT_EQ(compare(bytes_of<double>({1.5, -2}), DType::f64, bytes_of<std::uint16_t>({0x3E00, 0xC000}), DType::f16, {0, 0}).count, 0U);
  EXPECT_EQ(compare(bytes_of<std::int16_t>({-3, 7}), DType::i16, bytes_of<std::int64_t>({-3, 7}), DType::i64, {0, 0}).count, 0U);
  EXPECT_EQ(compare(bytes_of<std::uint8_t>({1, 0}), DType::boolean, bytes_of<std::uint8_t>({1, 1}), DType::boolean, {0, 0}).worst_position,
            1U);
}

TEST(Arithmetic, CastsTheFirstSideWhenAsked) {
  // 1 + 2^-9 is no bfloat16: it rounds to 1.
  const std::string a = bytes_of<float>({1.001953125F}), b = bytes_of<std::uint16_t>({0x3F80});
  EXPECT_EQ(compare(a, DType::f32, b, DType::bf16, {0, 0}).count, 1U);
  EXPECT_EQ(compare(a, DType::f32, b, DType::bf16, {0, 0}, true).count, 0U);
  const std::string integer = bytes_of<std::int32_t>({1});
  EXPECT_EQ(compare(a, DType::f32, integer, DType::i32, {0, 0}, true).count, 1U) << "only floating types are cast";
}

TEST(Arithmetic, TellsLargeIntegersApart) {
  const std::int64_t large = (std::int64_t{1} << 60) + 1;  // not a double
  EXPECT_EQ(
      compare(bytes_of<std::int64_t>({large, large}), DType::i64, bytes_of<std::int64_t>({large, large - 1}), DType::i64, {0, 0}).count,
      1U);
}

TEST(Arithmetic, KnowsUnsignedTypes) {
  EXPECT_DOUBLE_EQ(compare(bytes_of<std::uint16_t>({65535}), DType::u16, bytes_of<float>({0}), DType::f32).max_abs, 65535.0);
  EXPECT_DOUBLE_EQ(compare(bytes_of<std::uint32_t>({4294967295U}), DType::u32, bytes_of<float>({0}), DType::f32).max_abs, 4294967295.0);
  EXPECT_DOUBLE_EQ(compare(bytes_of<std::uint64_t>({~std::uint64_t{0}}), DType::u64, bytes_of<float>({0}), DType::f32).max_abs, 0x1p64);
}

TEST(Arithmetic, KnowsTheEightBitFloats) {
  // 448, the largest; the smallest subnormal, 2^-9; NaN
  EXPECT_EQ(
      compare(bytes_of<std::uint8_t>({0x7E, 0x01, 0xFF}), DType::f8_e4m3, bytes_of<float>({448, 0x1p-9F, nan_f}), DType::f32, {0, 0}).count,
      0U);
  EXPECT_EQ(compare(bytes_of<std::uint8_t>({0x7B, 0x01, 0xFC, 0x7F}), DType::f8_e5m2, bytes_of<float>({57344, 0x1p-16F, -inf_f, nan_f}),
                    DType::f32, {0, 0})
                .count,
            0U);
  EXPECT_EQ(
      compare(bytes_of<std::uint8_t>({0x7F, 0x01, 0x80}), DType::f8_e4m3fnuz, bytes_of<float>({240, 0x1p-10F, nan_f}), DType::f32, {0, 0})
          .count,
      0U);
  EXPECT_EQ(
      compare(bytes_of<std::uint8_t>({0x7F, 0x01, 0x80}), DType::f8_e5m2fnuz, bytes_of<float>({57344, 0x1p-17F, nan_f}), DType::f32, {0, 0})
          .count,
      0U);
  EXPECT_EQ(
      compare(bytes_of<std::uint8_t>({127, 0, 255}), DType::f8_e8m0, bytes_of<double>({1, 0x1p-127, std::nan("")}), DType::f64, {0, 0})
          .count,
      0U);
}

TEST(Arithmetic, CountsPairsTwiceAndPlacesThemOnce) {
  // low half first: 0x21 is (0.5, 1), 0xF1 is (0.5, -6)
  const Difference four =
      compare(bytes_of<std::uint8_t>({0x21, 0xF1}), DType::f4_x2, bytes_of<std::uint8_t>({0x21, 0x11}), DType::f4_x2, {0, 0});
  EXPECT_EQ(four.count, 1U);
  EXPECT_EQ(four.worst_position, 1U);
  EXPECT_DOUBLE_EQ(four.max_abs, 6.5);
  const Difference complex = compare(bytes_of<float>({1, 2, 3, 4}), DType::c64, bytes_of<float>({1, 2, 5, 5}), DType::c64, {0, 0});
  EXPECT_EQ(complex.count, 2U);
  EXPECT_EQ(complex.worst_position, 1U);
  EXPECT_THROW((void)compare(bytes_of<float>({1, 2}), DType::c64, bytes_of<float>({1}), DType::f32), Error);
}

TEST(Arithmetic, FindsTheWorstOfALongList) {
  std::vector<float> a(300'000, 1.0F), b(300'000, 1.0F);
  a[70'000] = 2.0F;
  a[299'999] = 4.0F;
  const Difference got = arithmetic().compare(std::as_bytes(std::span(a)), DType::f32, std::as_bytes(std::span(b)), DType::f32, {}, false);
  EXPECT_EQ(got.count, 2U);
  EXPECT_EQ(got.worst_position, 299'999U);
  EXPECT_EQ(got.pairs, 300'000U);
}

TEST(Arithmetic, AddsPiecesIntoAWhole) {
  Difference whole;
  add(whole, {.count = 1, .max_abs = 2, .max_rel = 0.5, .worst_position = 3, .worst_a = 7, .worst_b = 5, .dot = 1, .pairs = 10}, 100);
  add(whole, {.count = 2, .max_abs = 2, .max_rel = 0.7, .worst_position = 0, .worst_a = 9, .worst_b = 7, .dot = 2, .pairs = 10}, 200);
  EXPECT_EQ(whole.count, 3U);
  EXPECT_EQ(whole.worst_position, 103U) << "the first of equals";
  EXPECT_DOUBLE_EQ(whole.max_rel, 0.7);
  EXPECT_DOUBLE_EQ(whole.dot, 3.0);
  EXPECT_EQ(whole.pairs, 20U);
}

}  // namespace
}  // namespace unshard
