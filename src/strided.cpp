#include "strided.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace unshard {
namespace {

struct Dim {
  std::uint64_t extent = 1, to = 0, from = 0;  // strides in bytes
};

/// The dimensions that matter, outermost first in the target; neighbours that are contiguous on both sides are one.
struct Dims {
  std::array<Dim, max_rank> dim;
  std::size_t count = 0;

  Dims(const Shape& to, const Shape& from, const Shape& extent, std::size_t element_bytes) {
    for (std::size_t d = 0; d < extent.size(); ++d)
      if (extent[d] != 1) dim[count++] = {extent[d], to[d] * element_bytes, from[d] * element_bytes};
    std::stable_sort(dim.begin(), dim.begin() + count, [](const Dim& a, const Dim& b) { return a.to > b.to; });
    std::size_t kept = 0;
    for (std::size_t d = 0; d < count; ++d) {
      Dim* outer = kept > 0 ? &dim[kept - 1] : nullptr;
      if (outer != nullptr && outer->to == dim[d].to * dim[d].extent && outer->from == dim[d].from * dim[d].extent)
        *outer = {outer->extent * dim[d].extent, dim[d].to, dim[d].from};
      else
        dim[kept++] = dim[d];
    }
    count = kept;
  }
};

constexpr std::uint64_t tile = 32;  // elements; two tiles of 8-byte elements stay in the first cache

/// A plane of elements, in tiles: one of the two sides is walked across its rows.
template <std::size_t element_bytes>
void copy_plane(std::byte* to, const std::byte* from, const Dim& outer, const Dim& inner) {
  for (std::uint64_t row = 0; row < outer.extent; row += tile) {
    const std::uint64_t rows = std::min(tile, outer.extent - row);
    for (std::uint64_t column = 0; column < inner.extent; column += tile) {
      const std::uint64_t columns = std::min(tile, inner.extent - column);
      for (std::uint64_t i = 0; i < rows; ++i) {
        std::byte* target = to + (row + i) * outer.to + column * inner.to;
        const std::byte* source = from + (row + i) * outer.from + column * inner.from;
        for (std::uint64_t j = 0; j < columns; ++j) std::memcpy(target + j * inner.to, source + j * inner.from, element_bytes);
      }
    }
  }
}

void copy_rows(std::byte* to, const std::byte* from, const Dim& outer, std::size_t row_bytes) {
  for (std::uint64_t i = 0; i < outer.extent; ++i) std::memcpy(to + i * outer.to, from + i * outer.from, row_bytes);
}

/// Calls `plane` with the two pointers for every index of all dimensions but those of the plane.
template <class Plane>
void for_each_plane(std::byte* to, const std::byte* from, const Dim* dims, std::size_t count, const Plane& plane) {
  if (count == 0) return plane(to, from);
  for (std::uint64_t i = 0; i < dims->extent; ++i) for_each_plane(to + i * dims->to, from + i * dims->from, dims + 1, count - 1, plane);
}

/// Puts the dimension that is innermost in the source next to the one that is innermost in the target.
void bring_source_inside(Dims& dims) {
  if (dims.count < 2) return;
  Dim* last = dims.dim.data() + dims.count - 1;
  Dim* inner = std::min_element(dims.dim.data(), last, [](const Dim& a, const Dim& b) { return a.from < b.from; });
  std::rotate(inner, inner + 1, last);
}

template <std::size_t element_bytes>
void copy_elements(std::byte* to, const std::byte* from, Dims& dims) {
  const Dim none;
  bring_source_inside(dims);
  const Dim& inner = dims.count > 0 ? dims.dim[dims.count - 1] : none;
  const Dim& outer = dims.count > 1 ? dims.dim[dims.count - 2] : none;
  const std::size_t others = dims.count > 2 ? dims.count - 2 : 0;
  for_each_plane(to, from, dims.dim.data(), others,
                 [&](std::byte* target, const std::byte* source) { copy_plane<element_bytes>(target, source, outer, inner); });
}

}  // namespace

void copy_strided(std::byte* to, const Shape& to_stride, const std::byte* from, const Shape& from_stride, const Shape& extent,
                  std::size_t element_bytes) {
  if (std::find(extent.begin(), extent.end(), 0U) != extent.end()) return;
  Dims dims(to_stride, from_stride, extent, element_bytes);
  const Dim one;
  if (dims.count > 0 && dims.dim[dims.count - 1].to == element_bytes && dims.dim[dims.count - 1].from == element_bytes) {
    const std::size_t row_bytes = dims.dim[dims.count - 1].extent * element_bytes;
    const Dim& outer = dims.count > 1 ? dims.dim[dims.count - 2] : one;
    const std::size_t others = dims.count > 2 ? dims.count - 2 : 0;
    return for_each_plane(to, from, dims.dim.data(), others,
                          [&](std::byte* target, const std::byte* source) { copy_rows(target, source, outer, row_bytes); });
  }
  if (element_bytes == 1) copy_elements<1>(to, from, dims);
  if (element_bytes == 2) copy_elements<2>(to, from, dims);
  if (element_bytes == 4) copy_elements<4>(to, from, dims);
  if (element_bytes == 8) copy_elements<8>(to, from, dims);
  if (element_bytes == 16) copy_elements<16>(to, from, dims);
}

}  // namespace unshard
