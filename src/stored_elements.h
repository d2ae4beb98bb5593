// Reading the elements of a stored piece in row-major order, whatever its strides, in bounded memory. For comparing; the mover has its own
// way.
#pragma once

#include <functional>
#include <span>

#include "unshard/catalog.h"
#include "unshard/file_system.h"

namespace unshard {

/// Calls `sink` with the elements of `chunk`, little-endian and in row-major order, a few MiB at a time. Time grows with the number of
/// elements, which a stride of 0 can make far larger than the file: the caller's to bound.
void read_elements(File& file, const Chunk& chunk, DType dtype, const std::function<void(std::span<std::byte>)>& sink);

/// Bytes from the first stored element of `chunk` to the end of the last one.
[[nodiscard]] std::uint64_t span_bytes(const Chunk& chunk, DType dtype);

/// Calls `sink` with the bytes [position, position + length) of the file, a few MiB at a time.
void read_range(File& file, std::uint64_t position, std::uint64_t length, const std::function<void(std::span<std::byte>)>& sink);

}  // namespace unshard
