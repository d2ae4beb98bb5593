// Comparing what lies in an output file with the checksum of what was to be written there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "unshard/file_system.h"
#include "unshard/move.h"

namespace unshard {

/// What is read back in one call; measured best, as for writing (write_out.cpp).
inline constexpr std::uint64_t read_back_bytes = std::uint64_t{256} << 10;

/// Local. Fills `buffer` from `position` on and gives the CRC-32C of it, or of it and what lies in front, whose checksum is `before`.
/// Throws Error(verification) when the file ends before: it was not written well; Error(io) when it can't be read.
[[nodiscard]] std::uint32_t checksum_of_written(File& file, std::uint64_t position, std::span<std::byte> buffer, std::uint32_t before = 0);

/// Local. Throws Error(verification) naming file and range unless `found` is the checksum of `extent`.
void require_as_written(const File& file, const Extent& extent, std::uint32_t found);

}  // namespace unshard
