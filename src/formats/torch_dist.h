// The input format `torch_dist`, for the table of formats: Megatron's distributed checkpoints.
#pragma once

#include <string>
#include <vector>

#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& torch_dist_format();

/// Local, pure. Whether the weights have Megatron-core's names, which must be translated.
[[nodiscard]] bool has_megatron_names(const std::vector<IndexedTensor>& tensors);

}  // namespace unshard
