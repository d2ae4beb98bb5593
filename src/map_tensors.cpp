// Mapping, step by step (mapping_steps.h).
#include <algorithm>

#include "mapping_steps.h"
#include "unshard/error.h"

namespace unshard {
namespace {

/// What no output file can hold.
void check_output(const Published& published) {
  if (published.targets.empty())
    throw Error(ErrorCode::bad_input, "the checkpoint: holds no tensor to write; is this the folder of the model's weights?");
  for (const Target& target : published.targets) {
    if (target.name.empty() || target.name == "__metadata__") {
      throw Error(ErrorCode::bad_input,
                  "'" + printable(target.name) +
                      "': no tensor of a safetensors file can have this name; rename it with --custom-mapping or leave it out with --drop");
    }
    if (info(target.dtype).safetensors.empty()) {
      throw Error(ErrorCode::unsupported, printable(target.name) + ": element type " + std::string(info(target.dtype).name) +
                                              " has no place in safetensors; leave it out with --drop");
    }
  }
}

/// A config.json whose weights are no longer quantised says so.
void settle_quantisation(const MapContext& context, const Published& published, Mapping& mapping) {
  if (!context.config.has("quantization_config") || is_quantised(context, published)) return;
  mapping.edits.remove_quantization = true;
  mapping.notes.emplace_back("The weights are not quantised: quantization_config is left out of config.json");
}

void note_family(const MapContext& context, Mapping& mapping) {
  if (!context.family.name.empty() || context.options.like) return;
  const std::string type = context.options.model_type.empty() ? context.config.model_type() : context.options.model_type;
  mapping.notes.push_back((type.empty() ? "config.json has no model_type" : "No rules for model type " + printable(type)) +
                          ": names pass through, shapes are not checked against config.json");
}

}  // namespace

MapContext make_context(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options) {
  MapContext context{table, config, options, family_of(options.model_type.empty() ? config.model_type() : options.model_type, config),
                     {},    {}};
  if (!options.custom_mapping_path.empty()) {
    if (auto pairs = plain_mapping(options.custom_mapping, options.custom_mapping_path)) {
      context.renames = std::move(*pairs);
    } else {
      add_custom_rules(context.family, options.custom_mapping, options.custom_mapping_path);
    }
  }
  if (options.like) {
    for (const TensorRow& row : options.like->tensors) context.like.emplace(row.name, &row);
  }
  return context;
}

Mapping map_tensors(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options, TieAnswer tie) {
  const MapContext context = make_context(table, config, options);
  Mapping mapping;
  NamedTensors named = clean_names(context);
  mapping.targets.unused = std::move(named.unused);
  mapping.notes = std::move(named.notes);
  note_family(context, mapping);

  Published published = publish_names(context, named);
  settle_tie(context, tie, published, mapping);
  settle_quantisation(context, published, mapping);
  settle_architectures(context, published, mapping);
  if (!is_quantised(context, published)) {
    const std::vector<Expected> expected = expected_tensors(context, published);
    check_shapes(context, expected, published);
    if (!options.like) check_names(context, expected, published, mapping);
  } else {
    mapping.notes.emplace_back("The weights are quantised: names and shapes are not checked against config.json");
  }
  if (options.like) follow_like(context, published);
  choose_dtypes(context, published, mapping);
  check_output(published);
  for (const Target& target : published.targets) check_target(target, table);

  for (std::size_t i = 0; i < published.targets.size(); ++i) {
    if (published.filled[i]) mapping.filled.push_back(published.targets[i].name);
  }
  if (!mapping.filled.empty()) {
    mapping.notes.push_back("Filled " + std::to_string(mapping.filled.size()) + " missing tensor" +
                            (mapping.filled.size() == 1 ? "" : "s") + ": " + name_list(mapping.filled, 64));
  }
  mapping.targets.targets = std::move(published.targets);
  return mapping;
}

}  // namespace unshard
