// merge-lora: adapters folded into a model folder, or (--output adapter) into one another. Folding is merge's work; here is what the
// methods mean.
#include "adapter_input.h"
#include "combine_adapters.h"
#include "input_watch.h"
#include "merge_steps.h"
#include "steps.h"
#include "unshard/agree.h"

namespace unshard {
namespace {

using Method = MergeLoraOptions::Method;

/// The weight of each adapter's update.
std::vector<double> weights_of(const MergeLoraOptions& options) {
  const std::size_t count = options.merge.adapters.size();
  if (options.method == Method::concat) return std::vector<double>(count, 1);
  if (options.method == Method::average) return std::vector<double>(count, 1 / static_cast<double>(count));
  if (options.weights.size() != count) {
    throw Error(ErrorCode::usage, "merge-lora: --adapter-weights: " + std::to_string(options.weights.size()) + " weights for " +
                                      std::to_string(count) + " adapters; give one number for each, with commas");
  }
  return options.weights;
}

/// Collective. The base model is read only to know that the adapters are for it.
std::string write_combined(const Session& session, const MergeOptions& options) {
  const WorkLimits limits = limits_of(session, options.input);
  require_buffers("merge-lora", limits, least_reading_bytes);
  Input input = open_input(session, options.input.backend, options.input.local_dirs);
  const ConfigFolder config = find_config(session, input.source, "");
  InputWatch watch(session.comm, session.files, input.tree, input.source);
  FileCache files(session.files, input.source, limits);
  Catalog catalog = read_proven_catalog(session, "catalog", files, input.source, {&input.tree, options.input.cache_dir});
  MapOptions map;
  map.lora.what = LoraChoice::What::fold;
  std::vector<std::string> sources = options.input.local_dirs;
  for (const AdapterFolder& folder : options.adapters) {
    map.lora.adapters.push_back(read_adapter(session, folder, limits, input.tree, input.source, catalog));
    sources.push_back(folder.path);
  }
  watch.extend();
  const AdapterOutput adapter = collectively(session.comm, "adapter", [&] {
    check_adapters(catalog.tensors, config.config, map);
    AdapterOutput combined = combine_adapters(catalog.tensors, map.lora.adapters);
    for (const Target& target : combined.targets) check_target(target, catalog.tensors);
    return combined;
  });
  return write_adapters(session, input, watch, files, catalog, {adapter}, sources, options);
}

}  // namespace

std::string merge_lora(const Session& session, const MergeLoraOptions& options) {
  MergeOptions merge_options = options.merge;
  merge_options.input.backend = "hf";
  const std::vector<double> weights = weights_of(options);
  for (std::size_t i = 0; i < weights.size(); ++i) merge_options.adapters[i].weight = weights[i];
  return options.writes_adapter ? write_combined(session, merge_options) : merge(session, merge_options);
}

}  // namespace unshard
