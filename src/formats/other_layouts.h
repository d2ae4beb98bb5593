// Checkpoints that are recognised by name only, so that a user is told what was found.
#pragma once

#include <optional>
#include <string>

#include "unshard/source.h"

namespace unshard {

/// Local, pure. What `folder` holds if it is a checkpoint of a kind that no row of the format table reads: "a DeepSpeed checkpoint
/// (mp_rank_00_model_states.pt)".
[[nodiscard]] std::optional<std::string> other_layout(const Tree& tree, const std::string& folder);

}  // namespace unshard
