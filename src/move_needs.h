// What a move will ask of the file system and the network: for merge --dry-run, also for more ranks than run.
#pragma once

#include <cstdint>
#include <optional>

#include "unshard/catalog.h"
#include "unshard/comm.h"
#include "unshard/move.h"
#include "unshard/plan.h"
#include "unshard/source.h"
#include "unshard/targets.h"

namespace unshard {

/// Of all ranks of the plan together.
struct MoveNeeds {
  Readers readers = Readers::owners;
  bool other_ranks = false;           ///< the ranks of the plan are not those of the job: they count as seeing every file, sharing none
  std::uint64_t opens = 0;            ///< of shard files, those for the headers included
  std::uint64_t most_opens = 0;       ///< of one rank
  std::uint64_t read_bytes = 0;       ///< of shards, gaps included that are read with what lies around them
  std::uint64_t messages = 0;         ///< with bytes of tensors; all that one rank sends another in one round is one
  std::uint64_t exchanged_bytes = 0;  ///< in those messages
};

/// Collective. Follows the same choices as move(): who reads (readers_for, unless `readers` says it), the budget, steps, pieces,
/// reads. `options.home_readers` is not looked at. Every rank counts for some ranks of the plan, and gets the chunk records of those only.
/// The same on every rank. Throws Error(usage) where move() would for want of buffers.
[[nodiscard]] MoveNeeds move_needs(Comm& comm, const Source& source, const Catalog& catalog, const Targets& targets, const Plan& plan,
                                   const MoveOptions& options, std::optional<Readers> readers = {});

}  // namespace unshard
