// The index of a sharded Hugging Face folder: which file holds which tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unshard {

struct HfIndex {
  std::vector<std::pair<std::string, std::string>> files_by_tensor;  ///< sorted by tensor name
  std::optional<std::uint64_t> total_size;                           ///< bytes of all tensors; often wrong in the wild
};

/// Local, pure. Throws Error(bad_input) whose text starts with `label` for what is no index, names a tensor twice, or names a file outside
/// its folder.
[[nodiscard]] HfIndex parse_hf_index(std::string_view text, const std::string& label);

}  // namespace unshard
