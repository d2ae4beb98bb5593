// The loop nest of a term, cut into rectangular parts. A part can follow one axis per dimension; of several axes in a dimension (groups and
// rows of a fused qkv) the innermost stays inside the part and the others are walked here, within the asked box only.
#include "unshard/targets.h"

#include <algorithm>
#include <optional>
#include <set>

namespace unshard {
namespace {

/// Whether `outer`, then `inner` walk both tensors as one longer axis would.
bool joins(const Axis& outer, const Axis& inner) {
  return outer.source_dim == inner.source_dim && outer.target_dim == inner.target_dim &&
         outer.source_step == inner.extent * inner.source_step && outer.target_step == inner.extent * inner.target_step;
}

/// The term's axes by descending target step within each target dimension, neighbours joined where that changes nothing.
std::vector<Axis> joined_axes(const Term& term) {
  std::vector<Axis> axes = term.axes;
  std::stable_sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) {
    return a.target_dim != b.target_dim ? a.target_dim < b.target_dim : a.target_step > b.target_step;
  });
  std::vector<Axis> joined;
  for (const Axis& axis : axes) {
    if (!joined.empty() && joins(joined.back(), axis)) {
      joined.back().extent *= axis.extent;
      joined.back().source_step = axis.source_step;
      joined.back().target_step = axis.target_step;
    } else {
      joined.push_back(axis);
    }
  }
  return joined;
}

/// Indices first .. last - 1 of an axis; none when first >= last.
struct Range {
  std::uint64_t first = 0, last = 0;
};

/// Walks one term within one box.
class Expansion {
 public:
  Expansion(const Shape& shape, const Term& term, const Box& box, const std::function<void(const Part&)>& part)
      : term_(term), box_(box), emit_(part), source_at_(term.source_start), target_at_(term.target_start) {
    free_.fill(no_axis);
    std::array<bool, max_rank> source_taken{};
    const std::vector<Axis> axes = joined_axes(term);
    // From the last dimension back: the innermost axis of a dimension stays free unless its source dimension is taken already.
    std::vector<bool> is_free(axes.size(), false);
    for (std::size_t i = axes.size(); i-- > 0;) {
      const Axis& axis = axes[i];
      if (free_[axis.target_dim] != no_axis || source_taken[axis.source_dim]) continue;
      free_[axis.target_dim] = static_cast<int>(i);
      source_taken[axis.source_dim] = true;
      is_free[i] = true;
    }
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (is_free[i]) continue;
      loops_.push_back(axes[i]);
    }
    axes_ = axes;
    rank_ = shape.size();
  }

  void run() { walk(0); }

 private:
  static constexpr int no_axis = -1;

  /// How far the axes of `dim` that are not fixed yet (loops from `loop` on, and the free one) can still move.
  [[nodiscard]] std::uint64_t remaining_span(std::size_t dim, std::size_t loop) const {
    std::uint64_t span = 0;
    for (std::size_t k = loop; k < loops_.size(); ++k) {
      if (loops_[k].target_dim == dim) span += (loops_[k].extent - 1) * loops_[k].target_step;
    }
    if (free_[dim] != no_axis) span += (axes_[free_[dim]].extent - 1) * axes_[free_[dim]].target_step;
    return span;
  }

  /// The indices of `axis` that reach the box when the others can still add `span`.
  [[nodiscard]] Range reaching(const Axis& axis, std::uint64_t span) const {
    const std::uint64_t at = target_at_[axis.target_dim];
    const std::uint64_t low = box_.offset[axis.target_dim];
    const std::uint64_t high = low + box_.extent[axis.target_dim];
    if (at >= high) return {};
    Range range{0, std::min(axis.extent, (high - 1 - at) / axis.target_step + 1)};
    if (at + span < low) range.first = (low - at - span + axis.target_step - 1) / axis.target_step;
    return range;
  }

  void walk(std::size_t loop) {
    if (loop == loops_.size()) return emit();
    const Axis& axis = loops_[loop];
    const Range range = reaching(axis, remaining_span(axis.target_dim, loop + 1));
    for (std::uint64_t i = range.first; i < range.last; ++i) {
      source_at_[axis.source_dim] += i * axis.source_step;
      target_at_[axis.target_dim] += i * axis.target_step;
      walk(loop + 1);
      source_at_[axis.source_dim] -= i * axis.source_step;
      target_at_[axis.target_dim] -= i * axis.target_step;
    }
  }

  void emit() const {
    Part part;
    part.source = term_.source;
    part.source_box = {source_at_, Shape::filled(source_at_.size(), 1)};
    part.source_step = Shape::filled(source_at_.size(), 1);
    part.target_box = {target_at_, Shape::filled(rank_, 1)};
    part.target_step = Shape::filled(rank_, 1);
    part.source_dim.fill(-1);
    for (std::size_t d = 0; d < rank_; ++d) {
      const std::uint64_t low = box_.offset[d];
      if (free_[d] == no_axis) {
        if (target_at_[d] < low || target_at_[d] - low >= box_.extent[d]) return;
        continue;
      }
      const Axis& axis = axes_[free_[d]];
      const Range range = reaching(axis, 0);
      if (range.first >= range.last) return;
      part.target_box.offset[d] += range.first * axis.target_step;
      part.target_box.extent[d] = range.last - range.first;
      part.target_step[d] = axis.target_step;
      part.source_box.offset[axis.source_dim] += range.first * axis.source_step;
      part.source_box.extent[axis.source_dim] = range.last - range.first;
      part.source_step[axis.source_dim] = axis.source_step;
      part.source_dim[d] = static_cast<std::int8_t>(axis.source_dim);
    }
    emit_(part);
  }

  const Term& term_;
  const Box& box_;
  const std::function<void(const Part&)>& emit_;
  std::vector<Axis> axes_;
  std::vector<Axis> loops_;
  std::array<int, max_rank> free_{};
  Shape source_at_, target_at_;
  std::size_t rank_ = 0;
};

/// Whether the term's bounding box meets `box`: most terms of a stacked target do not.
bool may_meet(const Term& term, const Box& box) {
  Shape last = term.target_start;
  for (const Axis& axis : term.axes) {
    if (axis.extent == 0) return false;
    last[axis.target_dim] += (axis.extent - 1) * axis.target_step;
  }
  for (std::size_t d = 0; d < last.size(); ++d) {
    if (box.extent[d] == 0 || last[d] < box.offset[d] || term.target_start[d] >= box.offset[d] + box.extent[d]) return false;
  }
  return true;
}

}  // namespace

Term copy_of(TensorId source, const Shape& shape) {
  Term term{source, Shape::filled(shape.size(), 0), Shape::filled(shape.size(), 0), {}};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    term.axes.push_back({shape[d], static_cast<std::uint8_t>(d), static_cast<std::uint8_t>(d), 1, 1});
  }
  return term;
}

std::vector<TensorId> sources_of(const Target& target) {
  std::set<TensorId> sources;
  for (const Term& term : target.terms) sources.insert(term.source);
  if (target.computation) {
    for (const Addend& addend : target.computation->addends) {
      sources.insert(addend.left.term.source);
      if (addend.right) sources.insert(addend.right->term.source);
    }
  }
  return {sources.begin(), sources.end()};
}

MatrixShape matrix_of(const Shape& shape) {
  MatrixShape matrix;
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) matrix.rows *= shape[d];
  if (!shape.empty()) matrix.columns = shape[shape.size() - 1];
  return matrix;
}

void for_each_part(const Shape& shape, const std::vector<Term>& terms, const Box& box, const std::function<void(const Part&)>& part) {
  for (const Term& term : terms) {
    if (may_meet(term, box)) Expansion(shape, term, box, part).run();
  }
}

void for_each_part(const Target& target, const Box& box, const std::function<void(const Part&)>& part) {
  for_each_part(target.shape, target.terms, box, part);
}

}  // namespace unshard
