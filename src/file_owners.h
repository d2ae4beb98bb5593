// Which rank reads the headers of which file.
#pragma once

#include <vector>

#include "unshard/comm.h"
#include "unshard/source.h"

namespace unshard {

/// Local, pure: the same on every rank. One rank for each file of `source`, on a node that sees it: balanced in count, neighbouring files
/// on one rank. Throws Error(internal) for a file that no node sees.
[[nodiscard]] std::vector<int> file_owners(const Comm& comm, const Source& source);

/// Local, pure. The lowest rank on one of `nodes`; throws Error(internal) when there is none.
[[nodiscard]] int lowest_rank_on(const Comm& comm, const std::vector<std::uint32_t>& nodes);

}  // namespace unshard
