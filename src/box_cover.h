// Whether boxes cover a tensor exactly once.
#pragma once

#include <cstddef>
#include <span>

#include "unshard/tensor.h"

namespace unshard {

struct Cover {
  enum class Kind : std::uint8_t {
    exact,
    hole,       ///< no box covers `where`
    overlap,    ///< boxes `first` and `second` share `where`
    irregular,  ///< too irregular to be checked in bounded time (no framework writes such)
  };
  Kind kind = Kind::exact;
  Box where;
  std::size_t first = 0, second = 0;
};

/// Local, pure. Each box is not empty and lies inside `shape`. Finds the first defect, the same for the same input. Time: about n log n for
/// grids and nested cuts, bounded for all others.
[[nodiscard]] Cover check_cover(const Shape& shape, std::span<const Box> boxes);

}  // namespace unshard
