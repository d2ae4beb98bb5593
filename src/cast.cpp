#include "cast.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "unshard/error.h"

namespace unshard {
namespace {

template <class Value>
Value load(const std::byte* from) {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class Value>
void store(std::byte* to, Value value) {
  std::memcpy(to, &value, sizeof value);
}

/// `yes` or `no` by masking: a conditional expression over the result of floating point arithmetic would stay a branch and keep the loop
/// from vectorising.
constexpr std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// Each type says how an element becomes an f32 and is made from one. Everything is arithmetic and selection, no branch, so that loops over
// it vectorise.

struct F64 {
  using Stored = double;
  static float to_f32(double value) { return static_cast<float>(value); }
  static double from_f32(float value) { return static_cast<double>(value); }
};

struct F32 {
  using Stored = float;
  static float to_f32(float value) { return value; }
  static float from_f32(float value) { return value; }
};

struct F16 {
  using Stored = std::uint16_t;

  static float to_f32(std::uint16_t value) {
    constexpr std::uint32_t exponent_mask = 0x7c00U << 13;
    const std::uint32_t magnitude = (value & 0x7fffU) << 13;
    const std::uint32_t exponent = magnitude & exponent_mask;
    const std::uint32_t normal = magnitude + ((127U - 15U) << 23);
    const std::uint32_t quiet = magnitude > exponent_mask ? 0x400000U : 0U;
    const std::uint32_t special = (normal + ((128U - 16U) << 23)) | quiet;
    // A subnormal is a multiple of 2^-24: put it below the exponent of 2^-14 and take that away again.
    const auto subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(normal + (1U << 23)) - std::bit_cast<float>(113U << 23));
    const std::uint32_t bits = choose(exponent == exponent_mask, special, choose(exponent == 0, subnormal, normal));
    return std::bit_cast<float>(bits | (value & 0x8000U) << 16);
  }

  static std::uint16_t from_f32(float value) {
    constexpr std::uint32_t infinity = 255U << 23;
    constexpr std::uint32_t too_large = (127U + 16U)
                                        << 23;  // 65536; what lies between the largest f16 and this rounds up to infinity by itself
    constexpr std::uint32_t least_normal = (127U - 14U) << 23;
    constexpr std::uint32_t half = ((127U - 15U) + (23U - 10U) + 1U) << 23;  // adding it shifts a subnormal into place and rounds it
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    const std::uint32_t nan = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
    const std::uint32_t special = magnitude > infinity ? nan : 0x7c00U;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(half)) - half;
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    const std::uint32_t normal = (magnitude - ((127U - 15U) << 23) + 0xfffU + odd) >> 13;
    const std::uint32_t result = choose(magnitude >= too_large, special, choose(magnitude < least_normal, subnormal, normal));
    return static_cast<std::uint16_t>(result | (bits >> 16 & 0x8000U));
  }
};

template <std::uint16_t nan>
struct BF16 {
  using Stored = std::uint16_t;
  static float to_f32(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }
  static std::uint16_t from_f32(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 255U << 23 ? nan : rounded);
  }
};

using Loop = void (*)(const std::byte* from, std::byte* to, std::size_t count);

template <class From, class To>
[[gnu::always_inline]] inline void cast_elements(const std::byte* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = load<typename From::Stored>(from + i * sizeof(typename From::Stored));
    store<typename To::Stored>(to + i * sizeof(typename To::Stored), To::from_f32(From::to_f32(value)));
  }
}

template <class From, class To>
void cast_baseline(const std::byte* from, std::byte* to, std::size_t count) {
  cast_elements<From, To>(from, to, count);
}

#if defined(__x86_64__)
template <class From, class To>
[[gnu::target("avx2")]] void cast_avx2(const std::byte* from, std::byte* to, std::size_t count) {
  cast_elements<From, To>(from, to, count);
}

template <class From, class To>
Loop loop() {
  return __builtin_cpu_supports("avx2") != 0 ? cast_avx2<From, To> : cast_baseline<From, To>;
}
#else
template <class From, class To>
Loop loop() {
  return cast_baseline<From, To>;
}
#endif

template <class From, std::uint16_t bf16_nan>
Loop loop_to(DType to) {
  if (to == DType::f64) return loop<From, F64>();
  if (to == DType::f32) return loop<From, F32>();
  if (to == DType::f16) return loop<From, F16>();
  return loop<From, BF16<bf16_nan>>();
}

Loop loop_for(DType from, DType to) {
  if (from == DType::f64) return loop_to<F64, 0xffff>(to);
  if (from == DType::f32) return loop_to<F32, 0xffff>(to);
  if (from == DType::f16) return loop_to<F16, 0x7fc0>(to);
  return loop_to<BF16<0x7fc0>, 0x7fc0>(to);
}

template <class Unit>
void swap_units(std::span<std::byte> data) {
  for (std::size_t i = 0; i + sizeof(Unit) <= data.size(); i += sizeof(Unit)) {
    std::byte* unit = data.data() + i;
    auto value = load<Unit>(unit);
    if constexpr (sizeof(Unit) == 2) value = __builtin_bswap16(value);
    if constexpr (sizeof(Unit) == 4) value = __builtin_bswap32(value);
    if constexpr (sizeof(Unit) == 8) value = __builtin_bswap64(value);
    store<Unit>(unit, value);
  }
}

}  // namespace

void cast(std::span<const std::byte> from, DType from_type, std::span<std::byte> to, DType to_type) {
  const DTypeInfo& source = info(from_type);
  const DTypeInfo& target = info(to_type);
  const std::size_t count = from.size() / source.size_bytes;
  if (from_type != to_type && !(source.castable && target.castable))
    throw Error(ErrorCode::internal, "cast: " + std::string(source.name) + " to " + std::string(target.name) + " is not a conversion");
  if (from.size() % source.size_bytes != 0 || to.size() != count * target.size_bytes)
    throw Error(ErrorCode::internal, "cast: " + std::to_string(from.size()) + " bytes do not become " + std::to_string(to.size()));
  if (count == 0) return;
  if (from_type == to_type)
    std::memcpy(to.data(), from.data(), from.size());
  else
    loop_for(from_type, to_type)(from.data(), to.data(), count);
}

void swap_bytes(std::span<std::byte> data, std::size_t unit_bytes) {
  if (unit_bytes == 2) swap_units<std::uint16_t>(data);
  if (unit_bytes == 4) swap_units<std::uint32_t>(data);
  if (unit_bytes == 8) swap_units<std::uint64_t>(data);
}

}  // namespace unshard
