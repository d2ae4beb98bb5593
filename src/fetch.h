// Reading the elements of a slice: long reads where the elements lie close together, then swapped, gathered and cast into dense bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "assemble.h"
#include "unshard/file_cache.h"

namespace unshard {

struct Reads {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  ///< more than the elements' where small gaps are read as well
};

/// Local, pure. The reads that fetch() makes for `slice`.
[[nodiscard]] Reads reads_of(const Slice& slice, std::uint64_t scratch_bytes);

/// Local, pure. True when the reads for any part of the copy's range take the elements of that part and nothing between them, so that how
/// the range is cut into pieces does not change how many bytes are read. False when that is not so, or not known.
[[nodiscard]] bool reads_only_elements(const Copy& copy);

/// Local. Reads the slice from `file` into `dense` (of dense_bytes(slice)); `scratch` holds at least 64 bytes and is where bytes wait that
/// must be swapped, gathered or cast: a read through it is at most half of it, so that it stays in the cache.
void fetch(File& file, const Slice& slice, std::span<std::byte> dense, std::span<std::byte> scratch);

/// The memory that one thread needs to make pieces. It grows to what was needed.
struct Buffers {
  std::vector<std::byte> scratch;
  std::vector<std::byte> dense;
  std::vector<std::byte> work;  ///< of a computed piece
  Tiles tiles;
};

/// Local. Makes the output range of `copies` zero where it has bytes that are in none of them (between targets).
void clear_gaps(std::span<const Copy> copies, std::span<std::byte> output);

/// Local. Reads a copy and puts it into the output range (or the work area: `to` is what the copy goes to). Returns what was read.
Reads read_copy(FileCache& files, const Copy& copy, std::span<std::byte> to, Buffers& buffers);

/// Local. Makes the whole output range of `copies`. Returns what was read.
Reads assemble(FileCache& files, std::span<const Copy> copies, std::span<std::byte> output, Buffers& buffers);

/// Local. Makes a whole piece, computed or not. Returns what was read.
Reads make_piece(FileCache& files, const OutputPiece& piece, std::span<std::byte> output, Buffers& buffers);

}  // namespace unshard
