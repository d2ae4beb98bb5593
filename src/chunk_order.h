// The order of chunk records: by tensor, then by box, then by where they lie.
#pragma once

#include <algorithm>
#include <tuple>

#include "unshard/catalog.h"

namespace unshard {

[[nodiscard]] inline int compare_shapes(const Shape& a, const Shape& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  }
  return 0;
}

[[nodiscard]] inline bool chunk_before(const Chunk& a, const Chunk& b) {
  if (a.tensor != b.tensor) return a.tensor < b.tensor;
  if (const int order = compare_shapes(a.box.offset, b.box.offset); order != 0) return order < 0;
  if (const int order = compare_shapes(a.box.extent, b.box.extent); order != 0) return order < 0;
  return std::tie(a.file, a.position) < std::tie(b.file, b.position);
}

}  // namespace unshard
