// Every output tensor and what it is made of. Plain values: no tensor is built, and nothing is listed per part.
//
// A target is a few terms. A term is a loop nest over one source tensor:
//     target[target_start + sum_k i_k * target_step_k] = source[source_start + sum_k i_k * source_step_k],   0 <= i_k < extent_k
// where axis k moves along one dimension of the source and one of the target. So a copy has one axis per dimension; a transposition swaps
// target_dim; one expert of a stack has a source_start and no axis in dimension 0; interleaved gate and up have source_step 2; a q
// projection inside a fused qkv is an axis over groups and one over rows. A window's owner expands the terms for that window only
// (for_each_part).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/tensor.h"

namespace unshard {

struct Axis {
  std::uint64_t extent = 0;
  std::uint8_t source_dim = 0;
  std::uint8_t target_dim = 0;
  std::uint64_t source_step = 1;
  std::uint64_t target_step = 1;
  friend bool operator==(const Axis&, const Axis&) = default;
};

struct Term {
  TensorId source = 0;
  Shape source_start;  ///< of the source's rank
  Shape target_start;  ///< of the target's rank
  std::vector<Axis> axes;
  friend bool operator==(const Term&, const Term&) = default;
};

/// A matrix to compute with: its element [i, j] is where the term, whose target dimensions are 0 and 1, puts it. The term has one axis for
/// columns and any number for rows, or the other way round, so that it can be a transposed matrix, every n-th column, or rows in another
/// order.
struct Factor {
  std::uint64_t rows = 0, columns = 0;
  Term term;
};

/// What is added to a block of a target's matrix: scale * left · right, or scale * left where there is no right. The block begins at
/// [first_row, first_column] and has left.rows rows and as many columns as the product.
struct Addend {
  double scale = 1;
  std::uint64_t first_row = 0, first_column = 0;
  Factor left;
  std::optional<Factor> right;
  [[nodiscard]] std::uint64_t columns() const { return right ? right->columns : left.columns; }
};

/// How the elements of a target are computed from those that its terms give. The target is seen as a matrix: its last dimension is the
/// columns, all others are the rows. All in fp32, rounded once to the target's type:
///     factor * (stored + constant + Σ addends)
/// A product's sum, its scaling and each addition are rounded to fp32 (as PEFT does); they are made on blocks of fixed size, counted from
/// the first row and column of the addend, so that the bits depend neither on ranks nor on buffers.
struct Computation {
  std::vector<Addend> addends;
  float constant = 0;                              ///< norms that Megatron stores minus 1
  std::vector<float> row_factors, column_factors;  ///< DoRA: one of each row or column; empty: 1
};

struct Target {
  std::string name;  ///< as published
  DType dtype = DType::f32;
  Shape shape;
  std::vector<Term> terms;                              ///< cover the target exactly once (proven by check_targets)
  std::shared_ptr<const Computation> computation = {};  ///< null: the target is what its terms give, cast
};

/// A source tensor that no target uses, and why: "tied copy of model.embed_tokens.weight", "dropped by --drop".
struct Unused {
  std::string name;
  std::string reason;
};

struct Targets {
  std::vector<Target> targets;  ///< in the order in which transformers would save them
  std::vector<Unused> unused;
};

/// A rectangular piece of a term: source box (with steps) to target box. Dimension d of the target box is dimension source_dim[d] of the
/// source box
/// (-1: the target dimension has extent 1 here and no source dimension).
struct Part {
  TensorId source = 0;
  Box source_box;     ///< offset and extent counted in steps: source index = offset + i * step
  Shape source_step;  ///< of each source dimension
  Box target_box;     ///< offset and extent counted in steps likewise
  Shape target_step;  ///< of each target dimension
  std::array<std::int8_t, max_rank> source_dim{};
};

/// Local, pure. Rows and columns of the matrix that Computation means; a tensor of rank 1 is one row.
struct MatrixShape {
  std::uint64_t rows = 1, columns = 1;
};
[[nodiscard]] MatrixShape matrix_of(const Shape& shape);

/// Local, pure. The tensors that a target is made from, factors included; sorted, each once.
[[nodiscard]] std::vector<TensorId> sources_of(const Target& target);

/// Local, pure. The target's one term as an identity copy of a whole source tensor of `shape`.
[[nodiscard]] Term copy_of(TensorId source, const Shape& shape);

/// Local, pure. Calls `part` for the parts of `target` that meet `box` (of the target), clipped to it.
void for_each_part(const Target& target, const Box& box, const std::function<void(const Part&)>& part);

/// Local, pure. The same for anything of `shape` that is made of `terms`.
void for_each_part(const Shape& shape, const std::vector<Term>& terms, const Box& box, const std::function<void(const Part&)>& part);

/// Local, pure. Proves that the terms of `target` cover every element exactly once and stay inside their sources (shapes from `table`);
/// throws Error(internal) naming the target otherwise. So it does for the factors of its addends, whose blocks must lie inside the target's
/// matrix. Cost: terms × axes, not elements.
void check_target(const Target& target, const std::vector<TensorRow>& table);

}  // namespace unshard
