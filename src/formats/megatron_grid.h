// The ranks of a Megatron checkpoint: parallel sizes, where each file stands among them, which are missing, which layers each has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/megatron_args.h"
#include "formats/megatron_layers.h"
#include "unshard/catalog.h"
#include "unshard/source.h"

namespace unshard {

/// Where a file stands.
struct MegatronPlace {
  std::uint64_t tensor = 0, pipeline = 0, expert = 0, expert_tensor = 0;
};

struct MegatronGrid {
  std::uint64_t tensor = 1, pipeline = 1, expert = 1, expert_tensor = 1, chunks = 1;
  std::uint64_t experts = 0;  ///< of a layer, over all ranks; 0: none
  std::optional<std::uint64_t> padded_vocabulary;
  Facts of_args;                                ///< what they say of the model; empty without args
  std::vector<MegatronPlace> places;            ///< by file
  std::vector<std::vector<LayerRange>> layers;  ///< by [chunk][pipeline rank]
  std::vector<Finding> findings;                ///< missing folders, layers that do not fit

  [[nodiscard]] Facts facts() const;
};

/// Local, pure. Throws Error(bad_input) where the files contradict each other.
[[nodiscard]] MegatronGrid make_megatron_grid(const Source& source, const std::vector<std::vector<std::byte>>& about);

}  // namespace unshard
