// Copying elements between two arrays of different strides: what transposes, stacks and interleaves come down to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "unshard/tensor.h"

namespace unshard {

/// Local. Copies the elements i of a grid of `extent` from `from + i·from_stride` to `to + i·to_stride`; strides count elements of
/// `element_bytes` (a power of two up to 16). The arrays don't overlap and need no alignment.
void copy_strided(std::byte* to, const Shape& to_stride, const std::byte* from, const Shape& from_stride, const Shape& extent,
                  std::size_t element_bytes);

}  // namespace unshard
