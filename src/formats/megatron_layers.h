// Which decoder layers a pipeline stage holds. Megatron numbers the layers of each model chunk from 0; a published model from the first
// stage on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/megatron_args.h"

namespace unshard {

/// What stands in front of a decoder layer's number: today, and in older versions.
inline constexpr std::array<std::string_view, 3> layer_stacks{"decoder.layers.", "encoder.layers.", "transformer.layers."};

/// The layers of one chunk: `count` from global number `first` on.
struct LayerRange {
  std::uint64_t first = 0, count = 0;
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// Local, pure. By [virtual stage][pipeline rank], for `pipeline` ranks of `chunks` chunks each. Throws Error(bad_input) when the arguments
/// contradict each other.
[[nodiscard]] std::vector<std::vector<LayerRange>> layers_by_args(const MegatronArgs& args, std::uint64_t chunks);

/// Local, pure. The stages of a layout text: how many decoder layers each has, in order ("Et*3|(tt|)*29,m|L").
[[nodiscard]] std::vector<std::uint64_t> layers_of_layout(const std::string& layout);

}  // namespace unshard
