// Internal: which command a partial folder belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "unshard/catalog.h"
#include "unshard/comm.h"
#include "unshard/plan.h"
#include "unshard/source.h"
#include "unshard/targets.h"

namespace unshard {

/// Collective. The identity of a command: which stored bytes become which bytes of which files, cut into stages after `stage_layers` layers
/// (0: not staged). The same for any number of ranks, threads and buffers, and for another path to the same files. What is stored is known by
/// the CRC of each record; where a record has none, by the time at which its file was changed, of which `tree` knows. `catalog` is proven (prove_coverage).
[[nodiscard]] std::string command_identity(Comm& comm, const Tree& tree, const Source& source, const Catalog& catalog,
                                           const Targets& targets, const Layout& layout, std::uint64_t stage_layers);

/// Local, pure. In which respects two identities differ, as words for the user.
[[nodiscard]] std::string difference_of_commands(std::string_view one, std::string_view other);

}  // namespace unshard
