// CRC-32C (Castagnoli), the checksum of what is written and read back, over ISA-L; and joining the checksums of neighbouring ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unshard {

/// Local. The CRC-32C of `data`; given the checksum `before` of what lies in front of it, that of both together.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t before = 0);

/// Local. The CRC-32C of a range and the `second_bytes` bytes behind it, from the checksums of the two.
[[nodiscard]] std::uint32_t crc32c_joined(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

}  // namespace unshard
