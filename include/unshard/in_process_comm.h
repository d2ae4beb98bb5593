// Ranks as threads of one process: the same interface as MPI, with seeded schedules and a deadlock detector, so that a hang is found by a
// unit test.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "unshard/comm.h"
#include "unshard/file_system.h"

namespace unshard {

struct InProcessOptions {
  std::uint64_t seed = 0;        ///< of the schedule: who runs first, how long a message takes
  int ranks_per_node = 0;        ///< 0: all on one node
  double deadline_seconds = 20;  ///< ranks that only test messages, none of which ends, are a deadlock after so long
  FileSystem* files = nullptr;   ///< where open_shared opens; null: the real disk
};

/// Runs `body` once per rank, each in a thread. Rethrows what the ranks threw if it is the same Error everywhere; throws Error(internal)
/// when ranks threw different errors, some returned while others threw, a message was never received or dropped under way, ranks are in
/// different collective calls, or all are blocked (naming who waits for what). One rank runs at a time and may lose its turn at every call.
/// While a rank is inside a collective call, which ends when all ranks are in it, its messages do not progress (the worst that MPI-IO
/// does); a send ends only when it is received.
void run_ranks(int ranks, const InProcessOptions& options, const std::function<void(Comm&)>& body);

}  // namespace unshard
