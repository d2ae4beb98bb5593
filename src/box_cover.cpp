// The tensor is cut into cells until every cell is covered by one box. A cell is first cut at every plane that no box crosses (one sort
// along a dimension; a grid of 512 x 64 falls apart in two steps); where there is no such plane (a pinwheel), at the middle boundary, which
// splits the boxes across it.
#include "box_cover.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace unshard {
namespace {

using Members = std::vector<std::uint32_t>;

struct Cell {
  Box box;
  Members members;  ///< the boxes that reach into it
};

class CoverCheck {
 public:
  CoverCheck(const Shape& shape, std::span<const Box> boxes) : boxes_(boxes) {
    const std::uint64_t n = boxes.size() + 1;
    visits_left_ = 1'000'000 + n * 16 * static_cast<std::uint64_t>(std::bit_width(n));
    Members all(boxes.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint32_t>(i);
    cells_.push_back({whole(shape), std::move(all)});
  }

  Cover run() {
    while (!cells_.empty()) {
      Cell cell = std::move(cells_.back());
      cells_.pop_back();
      if (cell.members.size() > visits_left_) return {Cover::Kind::irregular, cell.box, 0, 0};
      visits_left_ -= cell.members.size();
      if (auto defect = settle(std::move(cell))) return *defect;
    }
    return {};
  }

 private:
  [[nodiscard]] std::uint64_t begin(std::uint32_t i, const Box& cell, std::size_t d) const {
    return std::max(boxes_[i].offset[d], cell.offset[d]);
  }
  [[nodiscard]] std::uint64_t end(std::uint32_t i, const Box& cell, std::size_t d) const {
    return std::min(boxes_[i].offset[d] + boxes_[i].extent[d], cell.offset[d] + cell.extent[d]);
  }
  [[nodiscard]] bool spans(std::uint32_t i, const Box& cell, std::size_t d) const {
    return begin(i, cell, d) == cell.offset[d] && end(i, cell, d) == cell.offset[d] + cell.extent[d];
  }
  static Box slab(Box cell, std::size_t d, std::uint64_t from, std::uint64_t to) {
    cell.offset[d] = from;
    cell.extent[d] = to - from;
    return cell;
  }

  /// Checks the cell or cuts it into smaller ones.
  std::optional<Cover> settle(Cell cell) {
    if (cell.members.empty()) return Cover{Cover::Kind::hole, cell.box, 0, 0};
    bool spanned = true;
    for (std::size_t d = 0; d < cell.box.offset.size(); ++d) {
      const auto in_full = [&](std::uint32_t i) { return spans(i, cell.box, d); };
      if (std::all_of(cell.members.begin(), cell.members.end(), in_full)) continue;
      spanned = false;
      bool cut = false;
      if (auto hole = cut_between(cell, d, cut)) return hole;
      if (cut) return std::nullopt;
    }
    if (!spanned) {
      cut_across(cell);
      return std::nullopt;
    }
    if (cell.members.size() == 1) return std::nullopt;
    const auto [first, second] = std::minmax(cell.members[0], cell.members[1]);
    return Cover{Cover::Kind::overlap, cell.box, first, second};
  }

  /// Cuts at the planes across dimension `d` that no box crosses; returns the first slab that no box reaches.
  std::optional<Cover> cut_between(Cell& cell, std::size_t d, bool& cut) {
    const auto before = [&](std::uint32_t a, std::uint32_t b) { return begin(a, cell.box, d) < begin(b, cell.box, d); };
    if (!std::is_sorted(cell.members.begin(), cell.members.end(), before))
      std::stable_sort(cell.members.begin(), cell.members.end(), before);
    std::uint64_t reached = cell.box.offset[d];
    std::vector<Cell> slabs;
    for (const std::uint32_t member : cell.members) {
      const std::uint64_t from = begin(member, cell.box, d), to = end(member, cell.box, d);
      if (from > reached) return Cover{Cover::Kind::hole, slab(cell.box, d, reached, from), 0, 0};
      if (slabs.empty() || from == reached) slabs.push_back({slab(cell.box, d, from, from), {}});
      slabs.back().members.push_back(member);
      reached = std::max(reached, to);
      slabs.back().box.extent[d] = reached - slabs.back().box.offset[d];
    }
    const std::uint64_t cell_end = cell.box.offset[d] + cell.box.extent[d];
    if (reached < cell_end) return Cover{Cover::Kind::hole, slab(cell.box, d, reached, cell_end), 0, 0};
    cut = slabs.size() > 1;
    if (cut) cells_.insert(cells_.end(), std::make_move_iterator(slabs.rbegin()), std::make_move_iterator(slabs.rend()));
    return std::nullopt;
  }

  /// Cuts in two at the middle one of the boundaries inside the cell.
  void cut_across(const Cell& cell) {
    std::vector<std::uint64_t> planes;
    std::size_t dimension = 0;
    for (std::size_t d = 0; d < cell.box.offset.size(); ++d) {
      std::vector<std::uint64_t> here;
      for (const std::uint32_t member : cell.members) {
        for (const std::uint64_t plane : {begin(member, cell.box, d), end(member, cell.box, d)}) {
          if (plane > cell.box.offset[d] && plane < cell.box.offset[d] + cell.box.extent[d]) here.push_back(plane);
        }
      }
      if (here.size() <= planes.size()) continue;
      planes = std::move(here);
      dimension = d;
    }
    const auto middle = planes.begin() + static_cast<std::ptrdiff_t>(planes.size() / 2);
    std::nth_element(planes.begin(), middle, planes.end());
    const std::uint64_t plane = *middle, first = cell.box.offset[dimension], last = first + cell.box.extent[dimension];
    Cell low{slab(cell.box, dimension, first, plane), {}}, high{slab(cell.box, dimension, plane, last), {}};
    for (const std::uint32_t member : cell.members) {
      if (begin(member, cell.box, dimension) < plane) low.members.push_back(member);
      if (end(member, cell.box, dimension) > plane) high.members.push_back(member);
    }
    cells_.push_back(std::move(high));
    cells_.push_back(std::move(low));
  }

  std::span<const Box> boxes_;
  std::vector<Cell> cells_;
  std::uint64_t visits_left_ = 0;
};

/// The usual case, without a list of cells: boxes that follow one another along one dimension and span all others.
bool is_row_of_slabs(const Shape& shape, std::span<const Box> boxes) {
  std::size_t along = shape.size();
  for (std::size_t d = 0; d < shape.size() && along == shape.size(); ++d) {
    if (boxes.front().extent[d] != shape[d]) along = d;
  }
  if (along == shape.size()) return boxes.size() == 1;
  std::uint64_t reached = 0;
  for (const Box& box : boxes) {
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (d != along && box.extent[d] != shape[d]) return false;
    }
    if (box.offset[along] != reached) return false;
    reached += box.extent[along];
  }
  return reached == shape[along];
}

}  // namespace

Cover check_cover(const Shape& shape, std::span<const Box> boxes) {
  if (!boxes.empty() && is_row_of_slabs(shape, boxes)) return {};
  return CoverCheck(shape, boxes).run();
}

}  // namespace unshard
