// Which rank files of FSDP make a checkpoint, by their names (verl/utils/checkpoint/fsdp_checkpoint_manager.py):
//
//     model_world_size_<W>_rank_<R>.pt                     the weights
//     optim_…, extra_state_world_size_<W>_rank_<R>.pt      never opened
//     fsdp_config.json                                     {"FSDP_version": 2, "world_size": W}; older runs have none
//     huggingface/                                         config.json, tokenizer
#pragma once

#include <string>
#include <vector>

#include "unshard/source.h"

namespace unshard {

[[nodiscard]] bool is_fsdp_rank_file(const std::string& name);

/// Local, pure. The rank files in `folders`. Missing ranks, files that can't be read and what is left from other runs are findings; throws
/// Error(bad_input) where names and fsdp_config.json do not tell which files belong together.
[[nodiscard]] Source describe_fsdp_files(const Tree& tree, const std::vector<std::string>& folders);

}  // namespace unshard
