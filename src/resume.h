// Going on from what an earlier run of the same command has written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "journal.h"
#include "unshard/comm.h"
#include "unshard/plan.h"
#include "unshard/publish.h"
#include "unshard/work_limits.h"

namespace unshard {

/// What need not be written again.
struct Resumed {
  std::vector<Window> done;     ///< sorted, disjoint; the same on every rank
  std::vector<Extent> extents;  ///< of `done`, with checksums; those that this rank has compared
  std::uint32_t run = 1;        ///< number of this run's journals
};

/// Collective. Reads the journals in the partial folder, reads each range that they name and that `plan` still writes, and keeps those
/// whose bytes have the checksum; stage 2 also those of stage 1. `found[file]`: 0 for a file of the plan that has just been made. Throws
/// Error(usage) when a journal belongs to other inputs.
[[nodiscard]] Resumed resume_from_journals(Comm& comm, FileSystem& files, const TargetFolder& target, const Plan& plan,
                                           const std::vector<std::uint8_t>& found, const JournalKey& key, const WorkLimits& limits);

/// Collective. This rank's journal of this run; none for a rank that does not write.
[[nodiscard]] std::unique_ptr<Journal> begin_journal(Comm& comm, FileSystem& files, const TargetFolder& target, const JournalKey& key,
                                                     std::uint32_t run);

/// Local. Removes the journals in `folder`; those of one stage only, when `stage` is not 0.
void remove_journals(FileSystem& files, const std::string& folder, int stage);

}  // namespace unshard
