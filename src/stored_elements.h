// Reading the elements of a stored piece in row-major order, whatever its strides, in bounded memory. For comparing; the mover has its own
// way.
#pragma once

#include <functional>
#include <span>

#include "unshard/catalog.h"
#include "unshard/file_system.h"
#include "unshard/work_limits.h"

namespace unshard {

/// Local, pure. The most that `sink` gets at once: an eighth of the buffers, and at most 4 MiB. Reading takes at most four such pieces, so
/// that as much is left for the sink.
[[nodiscard]] std::uint64_t reading_piece_bytes(const WorkLimits& limits);

/// Calls `sink` with the elements of `chunk`, little-endian and in row-major order, piece by piece. Time grows with the number of
/// elements, which a stride of 0 can make far larger than the file: the caller's to bound. Stops at a signal (work_limits.h).
void read_elements(File& file, const Chunk& chunk, DType dtype, const WorkLimits& limits,
                   const std::function<void(std::span<std::byte>)>& sink);

/// Bytes from the first stored element of `chunk` to the end of the last one.
[[nodiscard]] std::uint64_t span_bytes(const Chunk& chunk, DType dtype);

/// Local, pure. Leaves one of the elements that repeat (a stride of 0 may stand for more than any file has), and returns how often each of
/// the rest is there.
std::uint64_t without_repeats(Chunk& chunk);

/// Calls `sink` with the bytes [position, position + length) of the file, piece by piece. Stops at a signal.
void read_range(File& file, std::uint64_t position, std::uint64_t length, const WorkLimits& limits,
                const std::function<void(std::span<std::byte>)>& sink);

}  // namespace unshard
