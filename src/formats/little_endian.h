// Little-endian numbers at any address, as zip, torch and safetensors files hold them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace unshard {

template <class Number>
[[nodiscard]] inline Number load_little_endian(const std::byte* from) {
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;)
    value = static_cast<Number>((std::uint64_t{value} << 8) | std::to_integer<std::uint64_t>(from[i]));
  return value;
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
