// The values of the 8-bit and 4-bit floating types. A table of 256 doubles each serves every version of LibTorch, most of which lack some
// of these types. Sources: c10/util/Float8_e4m3fn.h, Float8_e5m2.h, Float8_e4m3fnuz.h, Float8_e5m2fnuz.h, Float8_e8m0fnu.h,
// Float4_e2m1fn_x2.h.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace unshard {

/// How a byte is a number: sign, exponent and mantissa bits, and what its highest codes mean.
struct SmallFloat {
  int mantissa_bits;
  int bias;
  enum class Special : std::uint8_t {
    ieee,           ///< the highest exponent holds infinities and NaNs (e5m2)
    all_ones_nan,   ///< only all ones is NaN, no infinity (e4m3fn)
    negative_zero,  ///< only the code of -0 is NaN (fnuz)
  } special;
};
inline constexpr SmallFloat e4m3fn{3, 7, SmallFloat::Special::all_ones_nan};
inline constexpr SmallFloat e5m2{2, 15, SmallFloat::Special::ieee};
inline constexpr SmallFloat e4m3fnuz{3, 8, SmallFloat::Special::negative_zero};
inline constexpr SmallFloat e5m2fnuz{2, 16, SmallFloat::Special::negative_zero};

[[nodiscard]] inline double value_of(std::uint8_t byte, const SmallFloat& type) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const unsigned code = byte & 0x7FU;
  const double sign = (byte & 0x80U) != 0 ? -1.0 : 1.0;
  const auto exponent = static_cast<int>(code >> static_cast<unsigned>(type.mantissa_bits));
  const unsigned mantissa = code & ((1U << static_cast<unsigned>(type.mantissa_bits)) - 1U);
  if (type.special == SmallFloat::Special::negative_zero && byte == 0x80U) return nan;
  if (type.special == SmallFloat::Special::all_ones_nan && code == 0x7FU) return nan;
  if (type.special == SmallFloat::Special::ieee && exponent == (0x7F >> type.mantissa_bits)) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : nan;
  }
  const int scale = (exponent == 0 ? 1 : exponent) - type.bias - type.mantissa_bits;
  const unsigned whole = mantissa + (exponent == 0 ? 0U : 1U << static_cast<unsigned>(type.mantissa_bits));
  return sign * std::ldexp(static_cast<double>(whole), scale);
}

[[nodiscard]] inline std::array<double, 256> table_of(const SmallFloat& type) {
  std::array<double, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) table[byte] = value_of(static_cast<std::uint8_t>(byte), type);
  return table;
}

/// Only an exponent: 2^(byte - 127); 255 is NaN.
[[nodiscard]] inline std::array<double, 256> e8m0_table() {
  std::array<double, 256> table{};
  for (int byte = 0; byte < 255; ++byte) table[static_cast<std::size_t>(byte)] = std::ldexp(1.0, byte - 127);
  table[255] = std::numeric_limits<double>::quiet_NaN();
  return table;
}

/// Two e2m1 numbers a byte, the low four bits first.
[[nodiscard]] inline std::array<double, 512> e2m1_pair_table() {
  constexpr std::array<double, 8> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::array<double, 512> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    for (unsigned half = 0; half < 2; ++half) {
      const unsigned code = (byte >> (4 * half)) & 15U;
      table[2 * byte + half] = (code & 8U) != 0 ? -magnitudes[code & 7U] : magnitudes[code & 7U];
    }
  }
  return table;
}

}  // namespace unshard
