// Element types as HDF5 has them. What it has no type for is stored as unsigned integers of the same size; the attribute `dtype` of every
// dataset, PyTorch's name, says what the bits are.
#pragma once

#include <optional>

#include "handle.h"
#include "unshard/tensor.h"

namespace unshard {

inline constexpr const char* dtype_attribute = "dtype";

/// The type that a dataset of `dtype` has in a file: little-endian.
[[nodiscard]] Handle stored_type(DType dtype);

/// What a dataset without the attribute holds; none for a type that is no tensor's, or is big-endian.
[[nodiscard]] std::optional<DType> dtype_of(hid_t type);

}  // namespace unshard
