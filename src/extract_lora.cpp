// extract-lora: the adapters inside a training checkpoint, as folders that PEFT and vLLM load.
#include <algorithm>

#include "adapter_settings.h"
#include "command_identity.h"
#include "extract_by_svd.h"
#include "input_watch.h"
#include "merge_steps.h"
#include "model_input.h"
#include "report.h"
#include "steps.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

/// --dtype: floating tensors become this type.
void cast_targets(const DTypeChoice& choice, std::vector<AdapterOutput>& adapters) {
  if (choice.kind != DTypeChoice::Kind::fixed) return;
  for (AdapterOutput& adapter : adapters)
    for (Target& target : adapter.targets)
      if (info(target.dtype).castable) target.dtype = choice.fixed;
}

/// Collective. The checkpoint's tensors; where their names must be translated (Megatron), also config.json, whose folder is one more of
/// `sources`, and what else says how.
Catalog read_checkpoint(const Session& session, FileCache& files, Input& input, const MergeOptions& options, ModelConfig& config,
                        MapOptions& map, std::vector<std::string>& sources) {
  map.names_are_published = input.source.names_are_published;
  if (map.names_are_published) {
    return read_proven_catalog(session, "catalog", files, input.source, {&input.tree, options.input.cache_dir});
  }
  const WorkLimits limits = limits_of(session, options.input);
  ConfigFolder found = find_config(session, input.source, options.hf_config);
  sources.push_back(found.path);
  config = std::move(found.config);
  for (const auto& [key, value] : options.config_overrides) config.override_number(key, value);
  map = complete_map_options(session, input.source, options.map, options.custom_mapping_path, "", limits);
  return read_model_input(session, "catalog", files, input, config, map, "", options.input.cache_dir, limits);
}

}  // namespace

void publish_adapters(const Session& session, const TargetFolder& target, const Output& output, const MergeOptions& options) {
  session.log.line("Saving the adapter to " + printable(options.target_dir, 4096));
  collectively(session.comm, "publish", [&] { stop_if_signalled(limits_of(session, options.input)); });
  publish(session.comm, session.files, target, output.plan, {}, 0, output.indexes);
}

std::string write_adapters(const Session& session, const Input& input, InputWatch& watch, FileCache& files, Catalog& catalog,
                           const std::vector<AdapterOutput>& adapters, const std::vector<std::string>& sources,
                           const MergeOptions& options) {
  StepTimes times;
  times.enter("target");
  const TargetFolder target =
      check_target_folder(session.comm, session.files, options.target_dir, sources, options.overwrite, !options.dry_run);
  check_links(session, target, input.source);
  Mapping mapping;
  times.enter("plan");
  Output output;
  const Layout layout = lay_out(session, input.source, catalog, mapping, adapters, "", options, output);
  output.plan = agree_on_plan(session, mapping.targets, layout, target, options, {});
  require_enough_buffer(session, mapping.targets, output.plan, options);
  if (options.dry_run) return show_move(session, input.source, catalog, mapping.targets, output.plan, options);
  std::vector<std::string> names;
  for (const OutputFile& file : output.plan.layout.files) names.push_back(file.name);
  for (const SmallFile& file : output.indexes) names.push_back(file.name);
  check_report_path(session, options.report_path, target, names, sources);
  times.enter("target");
  const std::string identity = command_identity(session.comm, input.tree, input.source, catalog, mapping.targets, output.plan.layout, 0);
  const OpenedPartial partial = open_partial(session.comm, session.files, target, output.plan,
                                             {identity, options.restart, false, beside_identity({}, output.indexes)});
  if (is_done_already(session, partial, options.target_dir)) {
    times.leave();
    return report_merge(session, {options, input.source, catalog, mapping, output.plan, {}, target, times});
  }
  const MoveReport moved = move_and_verify(session, files, input.source, catalog, mapping, output.plan, target, options, nullptr, times);
  watch.require_unchanged();
  times.enter("publish");
  publish_adapters(session, target, output, options);
  times.leave();
  const std::string result = report_merge(session, {options, input.source, catalog, mapping, output.plan, moved, target, times});
  session.log.line("The adapter was written: " + std::to_string(mapping.targets.targets.size()) + " tensors");
  return result;
}

std::string extract_lora(const Session& session, const ExtractLoraOptions& options) {
  if (!options.finetuned.empty()) return extract_by_svd(session, options);
  const WorkLimits limits = limits_of(session, options.merge.input);
  require_buffers("extract-lora", limits, least_reading_bytes);
  Input input = open_input(session, options.merge.input.backend, options.merge.input.local_dirs);
  InputWatch watch(session.comm, session.files, input.tree, input.source);
  FileCache files(session.files, input.source, limits);
  ModelConfig config;
  MapOptions map;
  std::vector<std::string> sources = options.merge.input.local_dirs;
  Catalog catalog = read_checkpoint(session, files, input, options.merge, config, map, sources);
  std::vector<AdapterUse> uses = adapters_in(session, input.source, catalog, options.merge.lora_alpha);
  if (uses.empty()) {
    throw Error(ErrorCode::bad_input,
                "extract-lora: " + printable(input.source.folder, 4096) +
                    ": holds no LoRA tensors; give a checkpoint of a LoRA training run, or --finetuned and --base-model");
  }
  for (AdapterUse& use : uses) {
    session.log.line(describe(use));
    if (!options.base_model.empty()) use.config.base_model = options.base_model;
  }
  std::vector<AdapterOutput> adapters =
      collectively(session.comm, "adapter", [&] { return adapters_beside(catalog.tensors, config, map, uses, ""); });
  cast_targets(options.merge.map.dtype, adapters);
  return write_adapters(session, input, watch, files, catalog, adapters, sources, options.merge);
}

}  // namespace unshard
