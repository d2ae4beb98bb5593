// The command `check`: is the checkpoint complete, and what is it? Everything that is wrong is found in one run.
#include <algorithm>

#include "catalog_cache.h"
#include "check_report.h"
#include "input.h"
#include "steps.h"
#include "unshard/merge.h"

namespace unshard {
namespace {

/// The index's sum is written by many programs and read by none: worth a note, no more.
void compare_stated_bytes(const Source& source, const Catalog& catalog, std::vector<Finding>& findings) {
  const bool whole = std::ranges::count(findings, Severity::error, &Finding::severity) == 0;
  if (!whole || !source.stated_bytes || *source.stated_bytes == total_bytes(catalog)) return;
  findings.push_back(
      {Severity::note, source.index_label,
       "total_size is " + std::to_string(*source.stated_bytes) + ", the tensors have " + std::to_string(total_bytes(catalog)) + " bytes"});
}

}  // namespace

CheckResult check(const Session& session, const CheckOptions& options) {
  const WorkLimits limits = limits_of(session, options.input);
  if (options.deep) require_buffers("check", limits, least_reading_bytes);
  const Input input = open_input(session, options.input.backend, options.input.local_dirs);
  FileCache files(session.files, input.source, limits);
  Catalog catalog = read_cached_catalog(session, files, input.tree, input.source, options.input.cache_dir);
  prove_coverage(session.comm, files, input.source, catalog, {.compare_payload = options.deep, .deep = options.deep});
  CheckReport report{input.source, catalog, input.source.findings, stored_as(session.comm, catalog), {}};
  report.findings.insert(report.findings.end(), catalog.findings.begin(), catalog.findings.end());
  compare_stated_bytes(input.source, catalog, report.findings);
  std::ranges::stable_sort(report.findings, {}, [](const Finding& finding) { return finding.severity == Severity::error ? 0 : 1; });
  if (options.deep) report.non_finite = count_non_finite(session.comm, files, input.source, catalog);
  for (const std::string& line : to_lines(report)) session.log.line(line);
  return {is_complete(report), session.comm.rank() == 0 ? to_json(report) : ""};
}

}  // namespace unshard
