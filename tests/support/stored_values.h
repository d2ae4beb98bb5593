// The elements of a tensor found in a file, read one by one: slow and simple, to compare with.
#pragma once

#include <string>
#include <vector>

#include "formats/torch_file.h"
#include "unshard/file_system.h"
#include "unshard/tensor.h"

namespace unshard::testing {

/// Row-major, little-endian.
inline std::string stored_bytes(File& file, const StoredTensor& tensor) {
  const std::uint64_t size = info(tensor.dtype).size_bytes, unit = info(tensor.dtype).swap_bytes;
  std::string all;
  Shape at = Shape::filled(tensor.shape.size(), 0);
  for (std::uint64_t n = volume(tensor.shape); n > 0; --n) {
    std::uint64_t element = 0;
    for (std::size_t i = 0; i < at.size(); ++i) element += at[i] * tensor.strides[i];
    std::vector<std::byte> bytes(size);
    file.read_at(tensor.position + element * size, bytes);
    for (std::uint64_t b = 0; b < size; ++b) {
      const std::uint64_t from = tensor.big_endian ? b / unit * unit + unit - 1 - b % unit : b;
      all += static_cast<char>(bytes[from]);
    }
    for (std::size_t i = at.size(); i-- > 0 && ++at[i] == tensor.shape[i];) at[i] = 0;
  }
  return all;
}

}  // namespace unshard::testing
