#include "unshard/arithmetic.h"

#include <algorithm>

namespace unshard {

void add(Difference& whole, const Difference& piece, std::uint64_t position) {
  if (piece.count > 0 && (whole.count == 0 || piece.max_abs > whole.max_abs)) {
    whole.max_abs = piece.max_abs;
    whole.worst_position = position + piece.worst_position;
    whole.worst_a = piece.worst_a;
    whole.worst_b = piece.worst_b;
  }
  whole.count += piece.count;
  whole.max_rel = std::max(whole.max_rel, piece.max_rel);
  whole.dot += piece.dot;
  whole.square_a += piece.square_a;
  whole.square_b += piece.square_b;
  whole.square_difference += piece.square_difference;
  whole.pairs += piece.pairs;
}

}  // namespace unshard
