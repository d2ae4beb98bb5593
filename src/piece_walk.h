// Going through what a rank writes, piece by piece as the move does it, or in longer stretches to count what it does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "assemble.h"
#include "extents.h"
#include "fetch.h"

namespace unshard {

/// Calls `use` with the pieces of a run (or of a step of one), in order. No piece goes beyond an extent.
template <class Use>
void for_each_piece(const Assembler& assembler, const ExtentBook& book, const Run& run, const PieceSizes& sizes, const Use& use) {
  for (std::uint64_t at = run.begin; at < run.end;) {
    OutputPiece piece = next_piece(assembler, run.file, at, std::min(run.end, book.end_of(run.file, at)), sizes);
    at = piece.end;
    use(std::move(piece));
  }
}

/// Local, pure. Whether cutting the range from `begin` on, of which these are the copies, changes neither how many bytes are read nor how
/// many are sent: no gaps are read, and no cut (at a multiple of PieceSizes::usual_bytes) goes through an element.
[[nodiscard]] inline bool cuts_change_nothing(std::uint64_t begin, const std::vector<Copy>& copies) {
  return std::all_of(copies.begin(), copies.end(), [&](const Copy& copy) {
    return reads_only_elements(copy) && (begin + copy.target) % info(copy.slice.to).size_bytes == 0;
  });
}

/// The same for who only counts bytes: stretches where cuts change nothing come as one piece, which may be a whole extent. A model has
/// millions of pieces, and thousands of extents.
template <class Use>
void for_each_counted_piece(const Assembler& assembler, const ExtentBook& book, const Run& run, const PieceSizes& sizes, const Use& use) {
  for (std::uint64_t at = run.begin; at < run.end;) {
    const std::uint64_t end = std::min(run.end, book.end_of(run.file, at));
    OutputPiece stretch{run.file, at, end, {}, {}, {}};
    const bool is_computed = assembler.next_computed(run.file, at, end) != nullptr;
    if (!is_computed) stretch.copies = assembler.copies(run.file, at, end);
    if (!is_computed && cuts_change_nothing(at, stretch.copies))
      use(std::move(stretch));
    else
      for_each_piece(assembler, book, {run.file, run.wave, at, end}, sizes, use);
    at = end;
  }
}

}  // namespace unshard
