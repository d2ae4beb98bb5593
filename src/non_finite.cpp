#include "non_finite.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace unshard {
namespace {

/// Floats of the IEEE kind: all exponent bits set is an infinity (mantissa 0) or a NaN. Counted only in blocks that have some; these are so
/// short that counters of the elements' own width suffice: the compiler turns the loops into vector instructions.
template <class Bits>
NonFinite count_ieee(std::span<const std::byte> elements, Bits exponent, Bits mantissa) {
  constexpr std::size_t block = sizeof(Bits) == 1 ? 128 : 4096;
  const auto magnitude = static_cast<Bits>(exponent | mantissa);
  NonFinite found;
  std::array<Bits, block> bits;
  for (std::size_t at = 0; at < elements.size(); at += sizeof bits) {
    const std::size_t bytes = std::min(sizeof bits, elements.size() - at);
    if (bytes < sizeof bits) bits.fill(0);
    std::memcpy(bits.data(), elements.data() + at, bytes - bytes % sizeof(Bits));
    std::make_signed_t<Bits> largest = 0;  // without its sign bit each value is one that is signed: the quickest to compare
    for (std::size_t i = 0; i < block; ++i) largest = std::max(largest, static_cast<std::make_signed_t<Bits>>(bits[i] & magnitude));
    if (static_cast<Bits>(largest) < exponent) continue;
    Bits special = 0, nan = 0;
    for (std::size_t i = 0; i < block; ++i) {
      const auto value = static_cast<Bits>(bits[i] & magnitude);
      special = static_cast<Bits>(special + (value >= exponent ? 1 : 0));
      nan = static_cast<Bits>(nan + (value > exponent ? 1 : 0));
    }
    found.nan += nan;
    found.infinite += static_cast<Bits>(special - nan);
  }
  return found;
}

/// Types without infinities: `nan` after `mask` is a NaN.
NonFinite count_code(std::span<const std::byte> elements, unsigned mask, unsigned nan) {
  const auto is_nan = [&](std::byte element) { return (std::to_integer<unsigned>(element) & mask) == nan; };
  return {static_cast<std::uint64_t>(std::ranges::count_if(elements, is_nan)), 0};
}

}  // namespace

NonFinite count_non_finite(std::span<const std::byte> elements, DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::c128:
      return count_ieee<std::uint64_t>(elements, 0x7FF0000000000000U, 0x000FFFFFFFFFFFFFU);
    case DType::f32:
    case DType::c64:
      return count_ieee<std::uint32_t>(elements, 0x7F800000U, 0x007FFFFFU);
    case DType::f16:
    case DType::c32:
      return count_ieee<std::uint16_t>(elements, 0x7C00U, 0x03FFU);
    case DType::bf16:
      return count_ieee<std::uint16_t>(elements, 0x7F80U, 0x007FU);
    case DType::f8_e5m2:
      return count_ieee<std::uint8_t>(elements, 0x7CU, 0x03U);
    case DType::f8_e4m3:
      return count_code(elements, 0x7FU, 0x7FU);
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return count_code(elements, 0xFFU, 0x80U);
    case DType::f8_e8m0:
      return count_code(elements, 0xFFU, 0xFFU);
    default:
      return {};
  }
}

void NonFiniteCounter::count(std::span<const std::byte> elements) {
  const NonFinite found = count_non_finite(elements, dtype_);
  total_.nan += found.nan;
  total_.infinite += found.infinite;
}

void NonFiniteCounter::add(std::span<const std::byte> bytes) {
  const std::size_t size = info(dtype_).size_bytes;
  if (begun_bytes_ > 0) {
    const std::size_t taken = std::min(size - begun_bytes_, bytes.size());
    std::memcpy(begun_.data() + begun_bytes_, bytes.data(), taken);
    begun_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (begun_bytes_ < size) return;
    count(std::span(begun_).first(size));
    begun_bytes_ = 0;
  }
  const std::size_t rest = bytes.size() % size;
  count(bytes.first(bytes.size() - rest));
  std::memcpy(begun_.data(), bytes.data() + (bytes.size() - rest), rest);
  begun_bytes_ = rest;
}

}  // namespace unshard
