// Keeping the files of a Hugging Face folder that is already split for the size asked.
#pragma once

#include <cstdint>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/source.h"
#include "unshard/targets.h"

namespace unshard {

/// Local, pure. By target, the number of its file in `source`, where every tensor of the folder is written as it is and its files are what
/// transformers' way of splitting makes with this limit (for some order of the tensors, which the folder does not tell); else empty.
[[nodiscard]] std::vector<std::uint32_t> kept_split(const Source& source, const Catalog& catalog, const Targets& targets,
                                                    std::uint64_t max_shard_bytes);

}  // namespace unshard
