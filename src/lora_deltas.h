// What adapters add to stored tensors, and how that reaches the targets that are made of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unshard/lora.h"
#include "unshard/targets.h"

namespace unshard {

/// A matrix inside a stored one: element [i, j] is the stored element with row_start + i * row_step in dimension row_dim and
/// column_start + j * column_step in column_dim. no_dim: there is one row (column) only.
struct MatrixView {
  static constexpr std::uint8_t no_dim = 255;
  TensorId tensor = 0;
  std::uint8_t row_dim = 0, column_dim = 1;
  std::uint64_t row_start = 0, row_step = 1, rows = 0;
  std::uint64_t column_start = 0, column_step = 1, columns = 0;
};
[[nodiscard]] MatrixView whole_matrix(TensorId tensor, const Shape& shape);
[[nodiscard]] MatrixView transposed(MatrixView view);

/// scale * left · right (scale * left without right) is added to a tensor, or to one matrix of a stack: the last two dimensions at index
/// `slab` of the first. A vector is one row.
struct Delta {
  Shape shape;  ///< of the tensor
  std::uint64_t slab = 0;
  double scale = 1;
  MatrixView left;
  std::optional<MatrixView> right;
};

/// Local, pure. The delta of a transposed tensor.
[[nodiscard]] Delta transposed(Delta delta);

/// Local, pure. The same matrix the other way round, and what is added to the transposed target.
[[nodiscard]] Factor transposed(Factor factor);
[[nodiscard]] Addend transposed(Addend addend);

/// Local, pure. What of the delta reaches a target through one of its terms (whose source is the delta's tensor); none when the term takes
/// nothing that the delta changes. Throws Error(unsupported) naming `target` for a term that takes the tensor apart in a way that no
/// product follows.
[[nodiscard]] std::optional<Addend> reach(const Delta& delta, const Term& term, const Target& target);

/// Local, pure. The delta of a piece that `term` takes from the tensor; none when it takes nothing of it. Throws like reach().
[[nodiscard]] std::optional<Delta> delta_of_piece(const Delta& delta, const Term& term, const Shape& shape, const std::string& name);

}  // namespace unshard
