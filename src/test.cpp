// The command `test`: is the merged model (or what a merge of these shards would write) the same as a reference? Names, shapes and types,
// then values.
#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>

#include "compare.h"
#include "input.h"
#include "model_input.h"
#include "steps.h"
#include "test_report.h"
#include "unshard/agree.h"
#include "unshard/merge.h"

namespace unshard {
namespace {

/// One model, ready to be compared.
struct Model {
  Input input;
  std::unique_ptr<FileCache> files;
  Catalog catalog;
  Targets targets;
  std::optional<ModelConfig> config;

  [[nodiscard]] Side side() const { return {input.source, catalog, *files, targets}; }
};

/// Collective. Which files there are; their catalog comes next.
std::unique_ptr<Model> open_model(const Session& session, const std::string& backend, const std::vector<std::string>& folders,
                                  const InputOptions& options) {
  auto model = std::make_unique<Model>();
  model->input = open_input(session, backend, folders);
  model->files = std::make_unique<FileCache>(session.files, model->input.source, limits_of(session, options));
  return model;
}

void require_tensors(const std::string& what, const Catalog& catalog, const std::string& folder) {
  if (catalog.tensors.empty()) throw Error(ErrorCode::bad_input, what + ": " + printable(folder, 4096) + ": holds no tensors");
}

/// Collective. config.json of a published folder, where there is one: only ties are looked up in it.
std::optional<ModelConfig> config_of(const Session& session, const Source& source) {
  try {
    return find_config(session, source, "").config;
  } catch (const Error& error) {  // the same on every rank
    if (error.code() != ErrorCode::bad_input) throw;
    return std::nullopt;
  }
}

/// Collective. A published folder as it is.
std::unique_ptr<Model> published_model(const Session& session, const std::string& what, const std::string& folder,
                                       const InputOptions& options) {
  auto model = open_model(session, "hf", {folder}, options);
  model->catalog = read_proven_catalog(session, what, *model->files, model->input.source, {&model->input.tree, options.cache_dir});
  require_tensors(what, model->catalog, folder);
  const std::vector<TensorRow>& rows = model->catalog.tensors;
  for (TensorId id = 0; id < rows.size(); ++id) {
    model->targets.targets.push_back({rows[id].name, rows[id].dtype, rows[id].shape, {copy_of(id, rows[id].shape)}});
  }
  model->config = config_of(session, model->input.source);
  return model;
}

/// Collective. What a merge of the shards would write.
std::unique_ptr<Model> model_from_shards(const Session& session, const TestOptions& options) {
  const WorkLimits limits = limits_of(session, options.input);
  auto model = open_model(session, options.input.backend, options.input.local_dirs, options.input);
  model->config = find_config(session, model->input.source, options.hf_config).config;
  for (const auto& [key, value] : options.config_overrides) model->config->override_number(key, value);
  MapOptions map = complete_map_options(session, model->input.source, options.map, options.custom_mapping_path, options.like_dir, limits);
  model->catalog = read_model_input(session, "merged", *model->files, model->input, *model->config, map, options.fill_missing_from,
                                    options.input.cache_dir, limits);
  require_tensors("merged", model->catalog, options.input.local_dirs.front());
  map.lora.what = LoraChoice::What::drop;  // the weights that a merge writes by default are those of the base
  Mapping mapping = make_mapping(session, *model->files, model->catalog, *model->config, map);
  for (const std::string& note : mapping.notes) session.log.detail(note);
  model->targets = std::move(mapping.targets);
  return model;
}

/// Collective. The head that `model` stores beside an embedding of the same bits although the model is tied: its name, or "". `other` says
/// whether it is tied where this side has no config.json.
std::string tied_head(const Session& session, const Model& model, const Model& other) {
  const std::optional<ModelConfig>& config = model.config ? model.config : other.config;
  if (!config) return "";
  MapOptions options;
  take_names_and_facts(options, model.input.source, model.catalog);
  options.dtype.kind = DTypeChoice::Kind::keep;
  options.lora.what = LoraChoice::What::drop;
  const auto question = collectively(session.comm, "map", [&] { return tie_question(model.catalog.tensors, *config, options); });
  return settle_tie(session, *model.files, model.catalog, question) == TieAnswer::equal ? model.catalog.tensors[question->head].name : "";
}

using Index = std::unordered_map<std::string_view, std::uint32_t>;
Index by_name(const Targets& targets) {
  Index index;
  for (std::uint32_t i = 0; i < targets.targets.size(); ++i) index.emplace(targets.targets[i].name, i);
  return index;
}

/// Collective. Those of `model` whose names `other` lacks, without a head that is no loss.
std::vector<OneSided> only_in(const Session& session, const Model& model, const Model& other, std::vector<std::string>& tied) {
  const Index known = by_name(other.targets);
  std::vector<OneSided> alone;
  for (const Target& target : model.targets.targets) {
    if (!known.contains(target.name)) alone.push_back({target.name, target.dtype, target.shape});
  }
  if (alone.empty()) return alone;
  const std::string head = tied_head(session, model, other);
  if (head.empty()) return alone;
  const auto found = std::ranges::find(alone, head, &OneSided::name);
  if (found == alone.end()) return alone;
  tied.push_back(head);
  alone.erase(found);
  return alone;
}

/// Local. Tensors of one name and shape whose values can be compared.
std::vector<Pair> comparable_pairs(const Model& a, const Model& b) {
  std::vector<Pair> pairs;
  const Index known = by_name(a.targets);
  for (std::uint32_t number = 0; number < b.targets.targets.size(); ++number) {
    const Target& of_b = b.targets.targets[number];
    const auto found = known.find(of_b.name);
    if (found == known.end()) continue;
    const Target& of_a = a.targets.targets[found->second];
    if (of_a.shape == of_b.shape && comparable(of_a.dtype, of_b.dtype)) pairs.push_back({found->second, number});
  }
  return pairs;
}

/// Local. Shapes and types; returns the pairs whose values can be compared.
std::vector<Pair> compare_shapes(const Model& merged, const Model& reference, TestReport& report) {
  const Index known = by_name(merged.targets);
  for (std::uint32_t b = 0; b < reference.targets.targets.size(); ++b) {
    const Target& of_reference = reference.targets.targets[b];
    const auto found = known.find(of_reference.name);
    if (found == known.end()) continue;
    const Target& of_merged = merged.targets.targets[found->second];
    const bool may_differ = report.like_dtype && comparable(of_merged.dtype, of_reference.dtype);
    if (of_merged.dtype != of_reference.dtype && !may_differ)
      report.dtypes.push_back({of_reference.name, of_merged.dtype, of_reference.dtype});
    if (!(of_merged.shape == of_reference.shape))
      report.shapes.push_back({of_reference.name, of_merged.shape, of_reference.shape});
  }
  std::vector<Pair> pairs = comparable_pairs(merged, reference);
  for (const Pair& pair : pairs) report.parameters += volume(reference.targets.targets[pair.b].shape);
  return pairs;
}

/// Collective.
void compare_values(const Session& session, const Model& merged, const Model& reference, std::span<const Pair> pairs,
                    const WorkLimits& limits, TestReport& report) {
  const std::vector<Difference> found = compare_pairs(session.comm, session.log, merged.side(), reference.side(), pairs,
                                                      {report.tolerance, report.like_dtype, limits, report.all_tensors});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Target& target = reference.targets.targets[pairs[i].b];
    if (found[i].count > 0) report.values.push_back({target.name, target.shape, found[i]});
    if (report.all_tensors) report.compared.push_back({target.name, target.shape, found[i]});
  }
}

/// Collective. How much the merged side differs from the model that training began with. The base is cast to the merged side's types, so
/// that what a narrower type rounds away is no change.
ChangeReport changes_since(const Session& session, const Model& merged, const Model& base, const std::string& folder,
                           const WorkLimits& limits) {
  ChangeReport report;
  report.base = folder;
  std::vector<std::string> tied;
  report.added = only_in(session, merged, base, tied);
  report.removed = only_in(session, base, merged, tied);
  const std::vector<Pair> pairs = comparable_pairs(base, merged);
  report.tensors = pairs.size();
  report.others = merged.targets.targets.size() - std::min(merged.targets.targets.size(), pairs.size() + report.added.size() + tied.size());
  const std::vector<Difference> found =
      compare_pairs(session.comm, session.log, base.side(), merged.side(), pairs, {{0, 0}, true, limits, false});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const Target& target = merged.targets.targets[pairs[i].b];
    report.elements += volume(target.shape);
    if (found[i].count > 0) report.values.push_back({target.name, target.shape, found[i]});
  }
  return report;
}

}  // namespace

TestResult test(const Session& session, const TestOptions& options) {
  const WorkLimits limits = limits_of(session, options.input);
  require_buffers("test", limits, least_comparing_bytes);
  const bool from_shards = !options.input.local_dirs.empty();
  TestReport report;
  report.merged = from_shards ? options.input.local_dirs.front() : options.merged_dir;
  report.reference = options.test_hf_dir;
  report.tolerance = options.tolerance;
  report.like_dtype = options.like_dtype;
  report.all_tensors = options.all_tensors;
  const auto merged =
      from_shards ? model_from_shards(session, options) : published_model(session, "merged", options.merged_dir, options.input);
  const auto reference = published_model(session, "reference", options.test_hf_dir, options.input);
  report.tensors = reference->targets.targets.size();
  report.missing = only_in(session, *reference, *merged, report.tied);
  report.unexpected = only_in(session, *merged, *reference, report.tied);
  const std::vector<Pair> pairs = compare_shapes(*merged, *reference, report);
  compare_values(session, *merged, *reference, pairs, limits, report);
  if (!options.base_dir.empty()) {
    const auto base = published_model(session, "base", options.base_dir, options.input);
    report.changes = changes_since(session, *merged, *base, options.base_dir, limits);
  }
  for (const std::string& line : to_lines(report)) session.log.line(line);
  const bool changed = !report.changes || has_changes(*report.changes);
  return {is_equal(report), changed, session.comm.rank() == 0 ? to_json(report) : ""};
}

}  // namespace unshard
