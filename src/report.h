// What a merge did, as JSON: for --json (a summary) and --report (every tensor, every extent, the SHA-256 of every output file).
#pragma once

#include <string>

#include "unshard/merge.h"
#include "unshard/publish.h"

namespace unshard {

/// The values of one merge, by reference; they outlive the call.
struct MergeFacts {
  const MergeOptions& options;
  const Source& source;
  const Catalog& catalog;
  const Mapping& mapping;
  const Plan& plan;
  const MoveReport& moved;  ///< of this rank
  const TargetFolder& target;
};

/// Collective. Writes options.report_path (when given) on rank 0 and returns the summary there ("" elsewhere). Paths are relative to the
/// folders given. With a report, each rank reads its share of the output files once more for the SHA-256.
[[nodiscard]] std::string report_merge(const Session& session, const MergeFacts& facts);

}  // namespace unshard
