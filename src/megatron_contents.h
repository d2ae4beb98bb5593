// Decoder layers and experts of a Megatron checkpoint, by the names and shapes of its global tensors: which there are, and whether they are
// those that the training arguments tell of (facts "args_layers", "args_experts").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unshard/catalog.h"

namespace unshard {

struct MegatronContents {
  std::vector<std::uint64_t> layers;   ///< sorted numbers of those that have a tensor
  std::vector<std::uint64_t> experts;  ///< how many a tensor of all experts holds; sorted, each number once
  std::vector<Finding> findings;       ///< layers and experts that are not there
};

/// Local, pure. `subject`: what lacks a layer, for its finding.
[[nodiscard]] MegatronContents megatron_contents(const std::vector<TensorRow>& table, const Facts& facts, const std::string& subject);

/// Local, pure. `layers 0-3; experts 8`; "" when there are none.
[[nodiscard]] std::string line_of(const MegatronContents& contents);

}  // namespace unshard
