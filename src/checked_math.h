// Sums and products of untrusted 64-bit numbers: nothing wraps round unnoticed.
#pragma once

#include <cstdint>
#include <optional>

namespace unshard {

[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

[[nodiscard]] inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Whether [position, position + length) lies inside [0, size).
[[nodiscard]] inline bool range_fits(std::uint64_t position, std::uint64_t length, std::uint64_t size) {
  return position <= size && length <= size - position;
}

}  // namespace unshard
