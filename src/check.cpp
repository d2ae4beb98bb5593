// The command `check`: is the checkpoint complete, and what is it? Everything that is wrong is found in one run.
#include <algorithm>
#include <optional>
#include <set>

#include "adapter_settings.h"
#include "catalog_cache.h"
#include "check_config.h"
#include "check_report.h"
#include "file_copies.h"
#include "input.h"
#include "lora_parameters.h"
#include "remote_code.h"
#include "steps.h"
#include "unshard/agree.h"
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

/// Collective. config.json, where there is one that can be read; else, of a Hugging Face folder, what is wrong with that.
std::optional<ConfigFolder> config_of(const Session& session, const Source& source, std::vector<Finding>& findings) {
  const bool is_hf = source.format == "hf";
  try {
    auto config = look_for_config(session, source, "");
    if (!config)
      findings.push_back({Severity::note, "config.json",
                          is_hf ? "is not there; loaders need it"
                                : "is not there: names and shapes were not compared with it, and merge will need --hf-config"});
    return config;
  } catch (const Error& error) {  // the same on every rank
    if (error.code() != ErrorCode::bad_input) throw;
    if (is_hf) findings.push_back({Severity::error, "config.json", error.what()});
    return std::nullopt;
  }
}

/// Collective.
void report_remote_code(const Session& session, const ConfigFolder& config, std::vector<Finding>& findings) {
  try {
    if (std::string code = missing_remote_code(session, config); !code.empty())
      findings.push_back({Severity::note, "config.json", std::move(code)});
  } catch (const Error& error) {  // the same on every rank; another config of the folder can't be read
    if (is_stop(error.code())) throw;
    findings.push_back({Severity::error, config.path, error.what(), error.code()});
  }
}

/// Collective. Whether an output layer that config.json ties to the embedding, and that is stored too, is the same bit by bit.
void compare_tie(const Session& session, FileCache& files, const Catalog& catalog, const ModelConfig& config,
                 std::vector<Finding>& findings) {
  MapOptions options;
  take_names_and_facts(options, files.source(), catalog);
  options.dtype.kind = DTypeChoice::Kind::keep;
  options.lora.what = LoraChoice::What::drop;
  std::optional<TieQuestion> question;
  if (attempt([&] { question = tie_question(catalog.tensors, config, options); }) || !question) return;  // the same on every rank
  const std::string& head = catalog.tensors[question->head].name;
  const std::string& embedding = catalog.tensors[question->embedding].name;
  try {
    const bool equal = settle_tie(session, files, catalog, question) == TieAnswer::equal;
    findings.push_back(
        {Severity::note, head,
         equal ? "equals " + printable(embedding) + ", to which config.json ties it; merge leaves it out"
               : "differs from " + printable(embedding) +
                     ", to which config.json ties it: loaders disagree about such a model; merge writes both and unties them"});
  } catch (const Error& error) {  // the same on every rank; what can't be read is a finding already
    if (is_stop(error.code())) throw;
  }
}

/// Collective. A checkpoint may be complete and still not what config.json describes: merge would say so before it writes, hours later.
void foresee_merge(const Session& session, const Source& source, const Catalog& catalog, const ModelConfig& config,
                   std::vector<Finding>& findings) {
  MapOptions options;
  take_names_and_facts(options, source, catalog);
  std::string obstacle =
      collectively(session.comm, "check", [&] { return obstacle_to_merge(catalog.tensors, config, std::move(options)); });
  if (!obstacle.empty()) findings.push_back({Severity::note, "merge", "will need an option, or another config.json: " + obstacle});
}

/// Collective. What is said of adapters beside their tensors; an adapter that makes no sense is a finding.
void find_alphas(const Session& session, const Source& source, const Catalog& catalog, CheckReport& report) {
  std::set<double> alphas;
  const auto error = attempt([&] {
    for (const AdapterUse& use : adapters_in(session, source, catalog, std::nullopt)) alphas.merge(alphas_of(use));
  });
  if (error && is_stop(error->code())) throw Error(*error);
  if (error) report.findings.push_back({Severity::error, "LoRA", error->what(), error->code()});
  report.lora_alphas.assign(alphas.begin(), alphas.end());
}

void add_once(std::vector<Finding>& findings, Finding finding) {
  const auto is_same = [&](const Finding& other) { return other.subject == finding.subject && other.text == finding.text; };
  if (std::ranges::none_of(findings, is_same)) findings.push_back(std::move(finding));
}

}  // namespace

CheckResult check(const Session& session, const CheckOptions& options) {
  const WorkLimits limits = limits_of(session, options.input);
  if (options.deep) require_buffers("check", limits, least_reading_bytes);
  const Input input = open_input(session, options.input.backend, options.input.local_dirs);
  FileCache files(session.files, input.source, limits);
  Catalog catalog = read_cached_catalog(session, files, input.tree, input.source, options.input.cache_dir);
  Coverage coverage = prove_coverage(session.comm, files, input.source, catalog, {.compare_payload = options.deep, .deep = options.deep});
  CheckReport report{input.source, catalog, input.source.findings, stored_as(session.comm, catalog), std::move(coverage.non_finite)};
  report.findings.insert(report.findings.end(), catalog.findings.begin(), catalog.findings.end());
  if (options.deep) {
    for (Finding& finding : compare_file_copies(session.comm, files, input.source, true)) add_once(report.findings, std::move(finding));
  }
  if (!input.source.names_are_published) {
    report.megatron = megatron_contents(catalog.tensors, catalog.facts, input.source.folder);
    report.findings.insert(report.findings.end(), report.megatron.findings.begin(), report.megatron.findings.end());
  }
  find_alphas(session, input.source, catalog, report);
  compare_stated_bytes(input.source, catalog, report.findings);
  if (const auto config = config_of(session, input.source, report.findings)) {
    const bool has_errors = std::ranges::count(report.findings, Severity::error, &Finding::severity) > 0;
    report_remote_code(session, *config, report.findings);
    if (input.source.format == "hf" || !input.source.shape_hint.empty()) {
      auto found = collectively(session.comm, "check",
                                [&] { return compare_with_config(catalog.tensors, config->config, has_errors, input.source.shape_hint); });
      report.findings.insert(report.findings.end(), found.begin(), found.end());
    } else if (!has_errors && input.source.names_are_published) {  // others are placed by what config.json says, which check does not ask
      foresee_merge(session, input.source, catalog, config->config, report.findings);
    }
    if (options.deep && !has_errors) compare_tie(session, files, catalog, config->config, report.findings);
  }
  std::ranges::stable_sort(report.findings, {}, [](const Finding& finding) { return finding.severity == Severity::error ? 0 : 1; });
  for (const std::string& line : to_lines(report)) session.log.line(line);
  return {is_complete(report), session.comm.rank() == 0 ? to_json(report) : ""};
}

}  // namespace unshard
