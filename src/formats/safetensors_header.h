// The header of a safetensors file. Every number in it is checked against the file before it is used.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "unshard/file_system.h"
#include "unshard/tensor.h"

namespace unshard {

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;                 ///< as PyTorch has it: the last extent of an F4 tensor counts pairs
  std::uint64_t position = 0;  ///< byte position in the file
  std::uint64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;                      ///< in order of position
  std::optional<std::map<std::string, std::string>> metadata;  ///< `__metadata__`
};

/// Local. Throws Error(bad_input) whose text starts with `label` for anything that is damaged or lies, Error(unsupported) for an element
/// type that is not known.
[[nodiscard]] SafetensorsHeader read_safetensors_header(File& file, const std::string& label);

}  // namespace unshard
