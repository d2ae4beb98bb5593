#include "lora_deltas.h"

#include <algorithm>
#include <utility>

#include "unshard/error.h"

namespace unshard {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  throw Error(ErrorCode::unsupported,
              printable(name) +
                  ": is made of an adapted tensor in a way that its LoRA update can't follow; fold the adapter into a model "
                  "folder by merge-lora, or `merge --lora drop` leaves it out");
}

/// The dimensions of a tensor that a delta is about: its rows and columns, and the stack's.
struct DeltaDims {
  std::size_t slab = max_rank, row = max_rank, column = 0;  ///< max_rank: there is none
};

DeltaDims dims_of(const Shape& shape) {
  if (shape.size() == 1) return {max_rank, max_rank, 0};
  if (shape.size() == 2) return {max_rank, 0, 1};
  return {0, 1, 2};
}

/// What the axes of a term do with one source dimension.
struct Walk {
  std::uint64_t start = 0, count = 1;
  std::vector<Axis> axes;  ///< of more than one step, from the innermost in the target
  std::uint8_t target_dim = MatrixView::no_dim;
};

Walk walk_of(const Term& term, std::size_t dim, const std::string& name) {
  Walk walk;
  if (dim == max_rank) return walk;
  walk.start = term.source_start[dim];
  for (const Axis& axis : term.axes) {
    if (axis.source_dim != dim) continue;
    if (walk.target_dim != MatrixView::no_dim && walk.target_dim != axis.target_dim && axis.extent > 1) refuse(name);
    if (axis.extent > 1 || walk.target_dim == MatrixView::no_dim) walk.target_dim = axis.target_dim;
    walk.count *= axis.extent;
    if (axis.extent > 1) walk.axes.push_back(axis);
  }
  std::sort(walk.axes.begin(), walk.axes.end(), [](const Axis& a, const Axis& b) { return a.target_step < b.target_step; });
  return walk;
}

/// Whether the axes fill a contiguous range of their target dimension.
bool is_dense(const Walk& walk) {
  std::uint64_t reach = 1;
  for (const Axis& axis : walk.axes) {
    if (axis.target_step != reach) return false;
    reach *= axis.extent;
  }
  return true;
}

/// How far the slab that a delta is about moves the place in the target: steps by target dimension. None when the term does not take it.
std::optional<Shape> place_of_slab(const Delta& delta, const Term& term, const Walk& walk, const Shape& target, const std::string& name) {
  Shape place = Shape::filled(target.size(), 0);
  for (std::size_t d = 0; d < target.size(); ++d) place[d] = term.target_start[d];
  if (delta.shape.size() < 3) return place;
  if (walk.axes.size() > 1) refuse(name);
  if (delta.slab < walk.start) return std::nullopt;
  const std::uint64_t distance = delta.slab - walk.start;
  if (walk.axes.empty()) return distance == 0 ? std::optional(place) : std::nullopt;
  const Axis& axis = walk.axes.front();
  if (distance % axis.source_step != 0 || distance / axis.source_step >= axis.extent) return std::nullopt;
  place[axis.target_dim] += distance / axis.source_step * axis.target_step;
  return place;
}

void add_axes(const Walk& walk, std::uint8_t source_dim, std::uint64_t step, std::uint8_t target_dim, Term& term) {
  for (const Axis& axis : walk.axes) term.axes.push_back({axis.extent, source_dim, target_dim, axis.source_step * step, axis.target_step});
}

/// The rows of `view` that `walk` takes, in its order; all columns.
Factor rows_of(const MatrixView& view, const Walk& walk, std::size_t rank) {
  Factor factor{walk.count, view.columns, {view.tensor, Shape::filled(rank, 0), {0, 0}, {}}};
  if (view.row_dim != MatrixView::no_dim) {
    factor.term.source_start[view.row_dim] = view.row_start + walk.start * view.row_step;
    add_axes(walk, view.row_dim, view.row_step, 0, factor.term);
  }
  if (view.column_dim != MatrixView::no_dim) {
    factor.term.source_start[view.column_dim] = view.column_start;
    factor.term.axes.push_back({view.columns, view.column_dim, 1, view.column_step, 1});
  }
  return factor;
}

std::size_t rank_of(const MatrixView& view) {
  std::size_t rank = 1;
  for (const std::uint8_t dim : {view.row_dim, view.column_dim})
    if (dim != MatrixView::no_dim) rank = std::max<std::size_t>(rank, dim + 1U);
  return rank;
}

}  // namespace

MatrixView whole_matrix(TensorId tensor, const Shape& shape) {
  if (shape.size() == 1) return {tensor, MatrixView::no_dim, 0, 0, 1, 1, 0, 1, shape[0]};
  return {tensor, 0, 1, 0, 1, shape[0], 0, 1, shape[1]};
}

MatrixView transposed(MatrixView view) {
  std::swap(view.row_dim, view.column_dim);
  std::swap(view.row_start, view.column_start);
  std::swap(view.row_step, view.column_step);
  std::swap(view.rows, view.columns);
  return view;
}

Delta transposed(Delta delta) {
  const std::size_t rank = delta.shape.size();
  std::swap(delta.shape[rank - 2], delta.shape[rank - 1]);
  if (delta.right) {
    std::swap(delta.left, *delta.right);
    delta.right = transposed(*delta.right);
  }
  delta.left = transposed(delta.left);
  return delta;
}

Factor transposed(Factor factor) {
  std::swap(factor.rows, factor.columns);
  std::swap(factor.term.target_start[0], factor.term.target_start[1]);
  for (Axis& axis : factor.term.axes) axis.target_dim = static_cast<std::uint8_t>(1 - axis.target_dim);
  return factor;
}

Addend transposed(Addend addend) {
  std::swap(addend.first_row, addend.first_column);
  if (addend.right) {
    std::swap(addend.left, *addend.right);
    addend.right = transposed(std::move(*addend.right));
  }
  addend.left = transposed(std::move(addend.left));
  return addend;
}

std::optional<Addend> reach(const Delta& delta, const Term& term, const Target& target) {
  const DeltaDims dims = dims_of(delta.shape);
  const std::size_t rank = target.shape.size();
  const Walk slabs = walk_of(term, dims.slab, target.name);
  const Walk rows = walk_of(term, dims.row, target.name), columns = walk_of(term, dims.column, target.name);
  const auto place = place_of_slab(delta, term, slabs, target.shape, target.name);
  if (!place) return std::nullopt;
  if (!is_dense(rows) || !is_dense(columns)) refuse(target.name);
  // Rows of the tensor run along one of the target's last two dimensions, columns along the other.
  const auto runs_along = [&](const Walk& walk, std::size_t dim) {
    return walk.target_dim == MatrixView::no_dim ? walk.count == 1 : walk.target_dim == dim;
  };
  const bool straight = runs_along(columns, rank - 1) && (rank < 2 ? rows.count == 1 : runs_along(rows, rank - 2));
  const bool turned = !straight && rank >= 2 && runs_along(rows, rank - 1) && runs_along(columns, rank - 2);
  if (!straight && !turned) refuse(target.name);
  Addend addend;
  addend.scale = delta.scale;
  for (std::size_t d = 0; d + 1 < rank; ++d) addend.first_row = addend.first_row * target.shape[d] + (*place)[d];
  addend.first_column = (*place)[rank - 1];
  if (!delta.right) {
    // One matrix: its columns are restricted as well.
    Factor factor = rows_of(delta.left, rows, rank_of(delta.left));
    std::erase_if(factor.term.axes, [](const Axis& axis) { return axis.target_dim == 1; });
    factor.columns = columns.count;
    if (delta.left.column_dim != MatrixView::no_dim) {
      factor.term.source_start[delta.left.column_dim] = delta.left.column_start + columns.start * delta.left.column_step;
      add_axes(columns, delta.left.column_dim, delta.left.column_step, 1, factor.term);
    }
    addend.left = turned ? transposed(std::move(factor)) : std::move(factor);
    return addend;
  }
  Factor left = rows_of(delta.left, rows, rank_of(delta.left));
  Factor right = transposed(rows_of(transposed(*delta.right), columns, rank_of(*delta.right)));
  addend.left = turned ? transposed(std::move(right)) : left;
  addend.right = turned ? transposed(std::move(left)) : right;
  return addend;
}

std::optional<Delta> delta_of_piece(const Delta& delta, const Term& term, const Shape& shape, const std::string& name) {
  const DeltaDims dims = dims_of(delta.shape);
  const Walk slabs = walk_of(term, dims.slab, name), rows = walk_of(term, dims.row, name), columns = walk_of(term, dims.column, name);
  if (shape.size() != 2 && shape.size() != 1) refuse(name);
  if (!place_of_slab(delta, term, slabs, shape, name)) return std::nullopt;
  if (rows.axes.size() > 1 || columns.axes.size() > 1 || (shape.size() == 2 && rows.target_dim == columns.target_dim)) refuse(name);
  const auto step_of = [](const Walk& walk) { return walk.axes.empty() ? 1 : walk.axes.front().source_step; };
  Delta piece = delta;
  piece.slab = 0;
  piece.left.row_start += rows.start * piece.left.row_step;
  piece.left.row_step *= step_of(rows);
  piece.left.rows = rows.count;
  MatrixView& with_columns = piece.right ? *piece.right : piece.left;
  with_columns.column_start += columns.start * with_columns.column_step;
  with_columns.column_step *= step_of(columns);
  with_columns.columns = columns.count;
  const bool turned = shape.size() == 2 && columns.target_dim == 0;
  piece.shape = shape.size() == 1 ? Shape{columns.count} : Shape{rows.count, columns.count};
  if (turned) piece = transposed(std::move(piece));
  if (!(piece.shape == shape)) refuse(name);
  return piece;
}

}  // namespace unshard
