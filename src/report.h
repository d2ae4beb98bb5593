// What a merge did, as JSON: for --json (a summary) and --report (every tensor, every extent, the SHA-256 of every output file).
#pragma once

#include <string>
#include <vector>

#include "step_times.h"
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
  const StepTimes& times;    ///< of this rank
  std::string modules = {};  ///< JSON: what an extraction says of each module; "": nothing
};

/// Collective, before anything is written. Throws Error(usage) when the report would replace a file of `sources` (folders) or of the model
/// that is about to be written (`model_files`: names, some of which only one rank may know), and Error(io) when it has no folder to lie in.
void check_report_path(const Session& session, const std::string& report_path, const TargetFolder& target,
                       const std::vector<std::string>& model_files, const std::vector<std::string>& sources);

/// Collective. Says how long it took (with --verbose, on which rank). Writes options.report_path (when given) on rank 0, or in the
/// model's folder on a rank that sees it, and returns the
/// summary there ("" elsewhere). Paths are relative to the folders given. With a report, each rank reads its share of the output files once
/// more for the SHA-256.
[[nodiscard]] std::string report_merge(const Session& session, const MergeFacts& facts);

}  // namespace unshard
