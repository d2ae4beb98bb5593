// Little-endian numbers at any address, as zip, torch and safetensors files hold them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace unshard {

template <class Number>
[[nodiscard]] inline Number load_little_endian(const std::byte* from) {
  std::make_unsigned_t<Number> value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, from, sizeof value);
  } else {
    for (std::size_t i = sizeof value; i-- > 0;)
      value = static_cast<decltype(value)>((std::uint64_t{value} << 8) | std::to_integer<std::uint64_t>(from[i]));
  }
  return static_cast<Number>(value);
}
[[nodiscard]] inline std::uint16_t load_u16(const std::byte* from) {
  return load_little_endian<std::uint16_t>(from);
}
[[nodiscard]] inline std::uint32_t load_u32(const std::byte* from) {
  return load_little_endian<std::uint32_t>(from);
}
[[nodiscard]] inline std::uint64_t load_u64(const std::byte* from) {
  return load_little_endian<std::uint64_t>(from);
}

}  // namespace unshard
