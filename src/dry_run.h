// Internal: a plan as text and as JSON, for merge --dry-run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "move_needs.h"
#include "unshard/plan.h"
#include "unshard/targets.h"

namespace unshard {

/// Local, pure. Lines for a person. `buffer_bytes`: what a rank's buffers may hold. `needs`: none where nothing is moved, but computed.
[[nodiscard]] std::vector<std::string> dry_run_lines(const Targets& targets, const Plan& plan, std::uint64_t buffer_bytes,
                                                     const std::optional<MoveNeeds>& needs);

/// Local, pure. The same as one JSON object.
[[nodiscard]] std::string dry_run_json(const Targets& targets, const Plan& plan, std::uint64_t buffer_bytes,
                                       const std::optional<MoveNeeds>& needs);

}  // namespace unshard
