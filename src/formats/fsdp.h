// The input format `fsdp`, for the table of formats.
#pragma once

#include "formats/torch_file.h"
#include "unshard/checkpoint_format.h"

namespace unshard {

[[nodiscard]] const CheckpointFormat& fsdp_format();

/// Local. The pieces in a rank file that has been read: DTensors, ShardedTensors and whole tensors. What can't be used is a finding.
[[nodiscard]] ShardContents pieces_of_rank_file(const Source& source, TorchContents contents);

}  // namespace unshard
