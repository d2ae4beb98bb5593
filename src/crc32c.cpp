#include "crc32c.h"

#include <isa-l.h>

#include <algorithm>

namespace unshard {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78;  // x^32 + …, lowest bit first: bit 31 is the coefficient of x^0

/// The product of two polynomials modulo the CRC's.
constexpr std::uint32_t multiplied(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ polynomial : b >> 1;
  }
  return product;
}

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before) {
  constexpr std::size_t most = std::size_t{1} << 30;  // ISA-L takes an int
  std::uint32_t state = ~before;
  for (std::size_t at = 0; at < data.size(); at += most) {
    const auto piece = data.subspan(at, std::min(most, data.size() - at));
    // ISA-L's parameter is not const, but it only reads.
    state = crc32_iscsi(const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data())), static_cast<int>(piece.size()),
                        state);
  }
  return ~state;
}

std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  // Behind `second_bytes` bytes, `first` counts as first * x^(8 * second_bytes); the initial and final inversions cancel out.
  std::uint32_t shift = 0x80000000;   // x^0
  std::uint32_t square = 0x00800000;  // x^8
  for (; second_bytes != 0; second_bytes >>= 1) {
    if ((second_bytes & 1) != 0) shift = multiplied(shift, square);
    square = multiplied(square, square);
  }
  return multiplied(first, shift) ^ second;
}

}  // namespace unshard
