// next_piece: how much of an output file a thread makes at once.
#include <algorithm>

#include "assemble.h"
#include "fetch.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// How long the read is, in bytes, by which the average byte comes: a few short reads beside long ones don't matter.
double typical_read(const std::vector<Copy>& copies, std::uint64_t scratch_bytes) {
  double bytes = 0, weighted = 0;
  for (const Copy& copy : copies) {
    const Reads reads = reads_of(copy.slice, scratch_bytes);
    const auto all = static_cast<double>(reads.bytes);
    bytes += all;
    weighted += all * (all / static_cast<double>(reads.count));
  }
  return bytes == 0 ? 0 : weighted / bytes;
}

OutputPiece next_plain_piece(const Assembler& assembler, std::uint32_t file, std::uint64_t begin, std::uint64_t end,
                             const PieceSizes& sizes) {
  constexpr double long_read = 65536;
  const auto piece_of = [&](std::uint64_t bytes) {
    const std::uint64_t limit = begin + bytes - (begin + bytes) % std::min(bytes, sizes.usual_bytes);
    const std::uint64_t piece_end = std::min(end, limit);
    return OutputPiece{file, begin, piece_end, assembler.copies(file, begin, piece_end), {}, {}};
  };
  std::uint64_t bytes = std::min(sizes.usual_bytes, sizes.most_bytes);
  OutputPiece piece = piece_of(bytes);
  double read = typical_read(piece.copies, sizes.scratch_bytes);
  while (read < long_read && piece.end < end && bytes * 2 <= sizes.most_bytes) {
    bytes *= 2;
    OutputPiece larger = piece_of(bytes);
    const double larger_read = typical_read(larger.copies, sizes.scratch_bytes);
    if (larger_read < read * 1.5) break;
    piece = std::move(larger);
    read = larger_read;
  }
  return piece;
}

/// Where a piece of at most `most_bytes` that begins at `begin` ends best: behind a block of rows, else a row, else a block of columns.
std::uint64_t good_end(const PlacedTarget& placed, const Target& target, std::uint64_t begin, std::uint64_t most_bytes) {
  const std::uint64_t size = info(target.dtype).size_bytes, columns = matrix_of(target.shape).columns;
  const std::uint64_t first = (begin - placed.position) / size, limit = (begin - placed.position + most_bytes) / size;
  const std::uint64_t first_row = first / columns, row = limit / columns;
  std::uint64_t element = row * columns;
  if (const std::uint64_t whole_blocks = row - row % block_rows; whole_blocks > first_row) {
    element = whole_blocks * columns;
  } else if (row == first_row) {
    const std::uint64_t start = row * columns, column = (limit - start) / block_columns * block_columns;
    const std::uint64_t least = ((first - start) / block_columns + 1) * block_columns;
    element = start + std::min(columns, std::max(column, least));
  }
  return placed.position + element * size;
}

/// Factors are read again for every piece: it is so long that they are a small part of what is read.
std::uint64_t wanted_bytes(const Target& target, const PieceSizes& sizes) {
  constexpr std::uint64_t times_factors = 8, most_bytes = std::uint64_t{4} << 20;
  std::uint64_t factor_elements = 0;
  for (const Addend& addend : target.computation->addends)
    if (addend.right) factor_elements = std::max(factor_elements, addend.right->rows * addend.right->columns);
  const std::uint64_t wanted = std::min(most_bytes, factor_elements * sizeof(float) * times_factors);
  return std::min(std::max(sizes.usual_bytes, wanted), sizes.most_bytes);
}

OutputPiece next_computed_piece(const Assembler& assembler, const PlacedTarget& placed, std::uint64_t begin, std::uint64_t end,
                                const PieceSizes& sizes) {
  const Target& target = assembler.target_of(placed);
  std::uint64_t last_end = 0;
  for (std::uint64_t bytes = wanted_bytes(target, sizes); bytes > 0; bytes /= 2) {
    const std::uint64_t piece_end = std::min(end, good_end(placed, target, begin, bytes));
    if (piece_end == last_end) continue;
    OutputPiece piece = assembler.computed_piece(placed, begin, piece_end, sizes.block_bytes);
    if (piece.calculation.work_bytes <= sizes.work_bytes && piece_end - begin <= sizes.most_bytes) return piece;
    last_end = piece_end;
  }
  throw Error(ErrorCode::usage, printable(target.name) + ": --buffer-size is too small for what is added to this tensor; raise it");
}

}  // namespace

OutputPiece next_piece(const Assembler& assembler, std::uint32_t file, std::uint64_t begin, std::uint64_t end, const PieceSizes& sizes) {
  const PlacedTarget* computed = assembler.next_computed(file, begin, end);
  if (computed == nullptr) return next_plain_piece(assembler, file, begin, end, sizes);
  if (computed->position > begin) return next_plain_piece(assembler, file, begin, computed->position, sizes);
  return next_computed_piece(assembler, *computed, begin, std::min(end, computed->position + computed->size_bytes), sizes);
}

}  // namespace unshard
