// The geometry of DTensor: torch/distributed/tensor/placement_types.py (Shard, _StridedShard) and _utils.py
// (compute_local_shape_and_global_offset).
//
// Placements are applied one mesh dimension after the other, from left to right, each to what the ones before left of the tensor:
//   Shard(d) over m ranks          chunks of ceil(n / m) rows; the last ones are short or empty
//   _StridedShard(d, f) over m     f chunks of ceil(n / f) rows, each cut again in m; rank i holds the i-th piece of every chunk, one after
//   the other
// FSDP2 with tensor parallelism writes [_StridedShard(0, tp), Shard(0)] on a mesh (dp, tp) but cuts the other way round: first tp, then dp
// within (torch/distributed/fsdp/_fully_shard/_fsdp_param.py). For sizes that divide both readings agree; for others the bytes are by that
// "nested" rule (seen with torch 2.13: 7 rows, tp 2, dp 3). So it is tried first where the split factor says that it may be meant, and the
// shape of the local tensor decides.
#include "formats/placement.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "unshard/error.h"

namespace unshard {
namespace {

using Kind = Placement::Kind;

constexpr std::size_t most_intervals =
    1024;  // a split factor is the size of a mesh dimension or two; more would cost time and memory without bound
constexpr std::uint64_t largest_extent = std::uint64_t{1} << 62U;  // so that sums of two fit

struct Interval {
  std::uint64_t begin = 0, end = 0;
  [[nodiscard]] std::uint64_t length() const { return end - begin; }
};

/// Of one dimension: the global rows that the local tensor holds, in local order; `more` only after a strided cut.
struct Rows {
  Interval first;
  std::vector<Interval> more;
  [[nodiscard]] std::uint64_t length() const {
    std::uint64_t sum = first.length();
    for (const Interval& interval : more) sum += interval.length();
    return sum;
  }
};

Error contradiction(const std::string& what) {
  return {ErrorCode::bad_input, what + "; save the checkpoint again"};
}

/// Part `index` of `count` of `n` rows.
Interval chunk(std::uint64_t n, std::uint64_t count, std::uint64_t index) {
  const std::uint64_t size = n / count + (n % count != 0 ? 1 : 0);
  if (size == 0 || index > n / size) return {n, n};
  return {std::min(index * size, n), std::min(index * size + size, n)};
}

void append(std::vector<Interval>& list, Interval interval) {
  if (interval.length() == 0) return;
  if (!list.empty() && list.back().end == interval.begin) {
    list.back().end = interval.end;
    return;
  }
  if (list.size() == most_intervals)
    throw contradiction("its placement cuts a dimension into more than " + std::to_string(most_intervals) + " pieces");
  list.push_back(interval);
}

/// The rows of `rows` at positions [part.begin, part.end) of its concatenation.
void append_part(std::vector<Interval>& list, const Rows& rows, Interval part) {
  std::uint64_t position = 0;
  const auto add = [&](const Interval& interval) {
    const std::uint64_t from = std::max(part.begin, position), to = std::min(part.end, position + interval.length());
    if (from < to) append(list, {interval.begin + (from - position), interval.begin + (to - position)});
    position += interval.length();
  };
  add(rows.first);
  for (const Interval& interval : rows.more) add(interval);
}

Rows from_list(std::vector<Interval> list, std::uint64_t end) {
  if (list.empty()) return {{end, end}, {}};
  Rows rows{list.front(), {}};
  list.erase(list.begin());
  rows.more = std::move(list);
  return rows;
}

void cut(Rows& rows, std::uint64_t ranks, std::uint64_t index) {
  if (rows.more.empty()) {
    const Interval part = chunk(rows.first.length(), ranks, index);
    rows.first = {rows.first.begin + part.begin, rows.first.begin + part.end};
    return;
  }
  std::vector<Interval> list;
  append_part(list, rows, chunk(rows.length(), ranks, index));
  rows = from_list(std::move(list), rows.first.end);
}

void cut_strided(Rows& rows, std::uint64_t split_factor, std::uint64_t ranks, std::uint64_t index) {
  const std::uint64_t total = rows.length();
  if (std::min(split_factor, total) > most_intervals)
    throw contradiction("its split factor " + std::to_string(split_factor) + " is impossible");
  std::vector<Interval> list;
  for (std::uint64_t i = 0; i < split_factor; ++i) {
    const Interval outer = chunk(total, split_factor, i);
    if (outer.length() == 0) break;
    const Interval inner = chunk(outer.length(), ranks, index);
    append_part(list, rows, {outer.begin + inner.begin, outer.begin + inner.end});
  }
  rows = from_list(std::move(list), rows.first.end);
}

using Layout = std::array<Rows, max_rank>;

Layout whole_tensor(const StoredDTensor& tensor) {
  Layout layout;
  for (std::size_t d = 0; d < tensor.global_shape.size(); ++d) layout[d].first = {0, tensor.global_shape[d]};
  return layout;
}

bool shards(const Placement& placement) {
  return placement.kind == Kind::shard || placement.kind == Kind::strided_shard;
}

void apply(Layout& layout, const StoredDTensor& tensor, std::size_t mesh_dim, bool as_written) {
  const Placement& placement = tensor.placements[mesh_dim];
  Rows& rows = layout[placement.dim];
  if (placement.kind == Kind::strided_shard && as_written) {
    cut_strided(rows, placement.split_factor, tensor.mesh_sizes[mesh_dim], tensor.coordinate[mesh_dim]);
  } else {
    cut(rows, tensor.mesh_sizes[mesh_dim], tensor.coordinate[mesh_dim]);
  }
}

/// By the order that the file states, or from left to right.
Layout as_written(const StoredDTensor& tensor) {
  Layout layout = whole_tensor(tensor);
  std::vector<bool> applied(tensor.placements.size(), false);
  for (const std::uint64_t mesh_dim : tensor.shard_order) {
    if (mesh_dim >= applied.size() || applied[mesh_dim]) throw contradiction("its shard order does not fit its mesh");
    applied[mesh_dim] = true;
    if (shards(tensor.placements[mesh_dim])) apply(layout, tensor, mesh_dim, true);
  }
  for (std::size_t mesh_dim = 0; mesh_dim < applied.size(); ++mesh_dim) {
    if (!applied[mesh_dim] && shards(tensor.placements[mesh_dim])) apply(layout, tensor, mesh_dim, true);
  }
  return layout;
}

/// Whether the nested rule may be meant: each split factor is the number of pieces into which the placements to the right cut the same
/// dimension.
bool may_be_nested(const StoredDTensor& tensor) {
  bool strided = false;
  for (std::size_t i = 0; i < tensor.placements.size(); ++i) {
    if (tensor.placements[i].kind != Kind::strided_shard) continue;
    strided = true;
    std::uint64_t pieces = 1;
    for (std::size_t right = i + 1; right < tensor.placements.size(); ++right) {
      if (!shards(tensor.placements[right]) || tensor.placements[right].dim != tensor.placements[i].dim) continue;
      if (__builtin_mul_overflow(pieces, tensor.mesh_sizes[right], &pieces)) return false;
    }
    if (pieces == 1 || pieces != tensor.placements[i].split_factor) return false;
  }
  return strided && tensor.shard_order.empty();
}

/// Plain cuts first, from left to right; then the strided ones from right to left, each as a plain cut within.
Layout nested(const StoredDTensor& tensor) {
  Layout layout = whole_tensor(tensor);
  for (std::size_t i = 0; i < tensor.placements.size(); ++i) {
    if (tensor.placements[i].kind == Kind::shard) apply(layout, tensor, i, false);
  }
  for (std::size_t i = tensor.placements.size(); i-- > 0;) {
    if (tensor.placements[i].kind == Kind::strided_shard) apply(layout, tensor, i, false);
  }
  return layout;
}

Shape shape_of(const Layout& layout, std::size_t rank) {
  Shape shape;
  for (std::size_t d = 0; d < rank; ++d) shape.push_back(layout[d].length());
  return shape;
}

bool is_empty(const Shape& shape) {
  return std::find(shape.begin(), shape.end(), 0U) != shape.end();
}

/// Empty parts have been written with several shapes: (0, 16), or (0,) by the first releases.
bool fits(const Shape& expected, const Shape& local) {
  return expected == local || (is_empty(expected) && is_empty(local));
}

void check(const StoredDTensor& tensor) {
  const std::size_t mesh_dims = tensor.mesh_sizes.size();
  if (tensor.placements.size() != mesh_dims || tensor.coordinate.size() != mesh_dims) {
    throw contradiction("it has " + std::to_string(tensor.placements.size()) + " placements and " +
                        std::to_string(tensor.coordinate.size()) + " coordinates for a mesh of " + std::to_string(mesh_dims) +
                        " dimensions");
  }
  for (const std::uint64_t extent : tensor.global_shape) {
    if (extent > largest_extent) throw contradiction("its shape " + to_string(tensor.global_shape) + " is impossible");
  }
  for (std::size_t i = 0; i < mesh_dims; ++i) {
    const Placement& placement = tensor.placements[i];
    if (tensor.coordinate[i] >= tensor.mesh_sizes[i]) {
      throw contradiction("its rank has coordinate " + std::to_string(tensor.coordinate[i]) + " in a mesh dimension of size " +
                          std::to_string(tensor.mesh_sizes[i]));
    }
    if (placement.kind == Kind::partial && tensor.mesh_sizes[i] > 1) {
      throw Error(ErrorCode::bad_input,
                  "it holds partial sums (placement Partial) that were never added up over the ranks; reduce it before saving");
    }
    if (!shards(placement)) continue;
    if (placement.dim >= tensor.global_shape.size()) {
      throw contradiction("it is cut along dimension " + std::to_string(placement.dim) + " but has shape " +
                          to_string(tensor.global_shape));
    }
    if (placement.kind == Kind::strided_shard && placement.split_factor == 0) throw contradiction("its split factor is 0");
  }
}

/// The boxes that the rows of all dimensions make.
std::vector<PlacedPiece> boxes(const Layout& layout, std::size_t rank) {
  std::vector<PlacedPiece> pieces(1);
  for (std::size_t d = 0; d < rank; ++d) {
    const std::size_t count = pieces.size(), intervals = 1 + layout[d].more.size();
    if (count > most_intervals / intervals)
      throw contradiction("its placement cuts it into more than " + std::to_string(most_intervals) + " pieces");
    std::vector<PlacedPiece> next;
    next.reserve(count * intervals);
    for (const PlacedPiece& piece : pieces) {
      std::uint64_t local = 0;
      for (std::size_t i = 0; i < intervals; ++i) {
        const Interval& interval = i == 0 ? layout[d].first : layout[d].more[i - 1];
        next.push_back(piece);
        next.back().box.offset.push_back(interval.begin);
        next.back().box.extent.push_back(interval.length());
        next.back().local_offset.push_back(local);
        local += interval.length();
      }
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace

std::vector<PlacedPiece> place(const StoredDTensor& tensor) {
  const Shape& local = tensor.local.shape;
  if (tensor.outside_mesh || (tensor.coordinate.empty() && !tensor.mesh_sizes.empty())) {
    if (is_empty(local)) return {};
    throw contradiction("its rank is outside its mesh and yet holds data of shape " + to_string(local));
  }
  check(tensor);
  const std::size_t rank = tensor.global_shape.size();
  Layout layout = may_be_nested(tensor) ? nested(tensor) : as_written(tensor);
  if (!fits(shape_of(layout, rank), local) && may_be_nested(tensor)) layout = as_written(tensor);
  const Shape expected = shape_of(layout, rank);
  if (!fits(expected, local)) {
    throw contradiction("its local tensor has shape " + to_string(local) + " but its placements give " + to_string(expected) + " of " +
                        to_string(tensor.global_shape));
  }
  if (is_empty(expected)) return {};
  return boxes(layout, rank);
}

}  // namespace unshard
