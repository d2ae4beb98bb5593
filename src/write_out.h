// How output bytes are handed to the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "unshard/file_system.h"

namespace unshard {

/// Local. Writes `data` at `position` in short calls, and starts write-back of what was written some time before, so that little is left
/// for fsync.
void write_out(File& file, std::uint64_t position, std::span<const std::byte> data);

}  // namespace unshard
