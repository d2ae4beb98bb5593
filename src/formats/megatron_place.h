// From the local tensors of model-parallel ranks to global ones: layer and expert numbers, and which box of the global tensor a rank holds.
// How the ranks share a tensor is data: "placements" of src/families/base.json, of the model's family, and of --custom-mapping.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/megatron_args.h"
#include "unshard/checkpoint_format.h"

namespace unshard {

/// Local, pure. As CheckpointFormat::place; pieces are called "<chunk>:<name>" before.
void place_megatron_pieces(const Source& source, const std::vector<std::vector<std::byte>>& about,
                           std::vector<std::pair<FileId, ShardContents>>& files);

}  // namespace unshard
