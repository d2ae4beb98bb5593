// Mapping, step by step (mapping_steps.h).
#include <algorithm>
#include <sstream>

#include "families/half_translated.h"
#include "mapping_steps.h"
#include "save_order.h"
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
  if (!context.family.name.empty()) return;
  if (!context.options.model_type.empty() && context.options.custom_mapping_path.empty()) {
    throw Error(ErrorCode::usage, "--model-type " + printable(context.options.model_type) +
                                      ": there are no rules of this name; `unshard inspect --families` lists those there are");
  }
  if (context.options.like) return;
  const std::string type = context.options.model_type.empty() ? context.config.model_type() : context.options.model_type;
  mapping.notes.push_back((type.empty() ? "config.json has no model_type" : "No rules for model type " + printable(type)) +
                          ": names pass through, shapes are not checked against config.json" +
                          (context.options.shape_hint.empty() ? "" : "; " + context.options.shape_hint));
}

/// A mistyped name in a rule of the user's would otherwise be seen only in the result.
void note_idle_rules(const MapContext& context, const NamedTensors& named, Mapping& mapping) {
  const std::vector<Rule>& rules = context.options.names_are_published ? context.family.rules : context.family.megatron;
  for (std::size_t i = 0; i < context.family.custom_rules; ++i) {
    const Rule& rule = rules[i];
    const auto is_about = [&](const NamedTensor& tensor) {
      return rule.whole_is_stored ? rule.whole.match(tensor.name).has_value() : whole_of(rule, tensor.name).has_value();
    };
    if (!rule.only_for_like && std::none_of(named.tensors.begin(), named.tensors.end(), is_about))
      mapping.notes.push_back("--custom-mapping: the rule for '" + printable(rule.whole.text()) + "' matches no tensor");
  }
}

/// The names must be translated, so the model type must be known.
void require_megatron_rules(const MapContext& context) {
  if (!context.family.megatron.empty()) return;
  const std::string type = context.options.model_type.empty() ? context.config.model_type() : context.options.model_type;
  throw Error(ErrorCode::unsupported,
              (context.options.model_type.empty() ? printable(context.config.path(), 4096) + ": model_type " : "--model-type ") +
                  (type.empty() ? "is missing" : "'" + printable(type) + "'") + ": no rules for Megatron's names of such a model" +
                  (context.family.no_megatron.empty() ? "" : ", because " + context.family.no_megatron) + "; known are " +
                  name_list(megatron_family_names(), 200) + "; docs/families.md says how to add one, or give rules with --custom-mapping");
}

/// Megatron may store a norm's weight minus 1, and so may the published model.
void require_known_norms(const MapContext& context) {
  const auto stored = context.options.facts.find("zero_centred_norms");
  if (stored == context.options.facts.end() || (stored->second == 1) == context.family.zero_centred_norms) return;
  throw Error(ErrorCode::unsupported, std::string("args.apply_layernorm_1p is ") + (stored->second == 1 ? "set" : "not set") + ", but a " +
                                          context.family.name + " model is published with norms " +
                                          (context.family.zero_centred_norms ? "minus 1" : "as they are") +
                                          "; this version does not add or subtract 1");
}

std::string number_of(const std::string& expression, const std::string& how, const MapContext& context) {
  const std::string label = "placements: '" + printable(how) + "'";
  const auto value = Expression::parse(expression, label).value(*context.names());
  if (!value)
    throw Error(ErrorCode::bad_input,
                printable(context.config.path(), 4096) + ": has no value for '" + printable(expression) +
                    "', which the layout of Megatron's tensors needs; give the model's own config.json with --hf-config DIR");
  return std::to_string(*value);
}

/// A placement with numbers instead of expressions: `rows n*d`, `parts z=inner x=inner`.
std::string with_numbers(const std::string& how, const MapContext& context) {
  std::istringstream in(how);
  std::string kind;
  in >> kind;
  if (kind != "rows" && kind != "parts") return how;
  std::string text = kind;
  for (std::string word; in >> word;) {
    const std::size_t equals = kind == "parts" ? word.find('=') : std::string::npos;
    const std::string name = equals == std::string::npos ? "" : word.substr(0, equals + 1);
    text += " " + name + number_of(word.substr(name.size()), how, context);
  }
  return text;
}

}  // namespace

NameHelp name_help(const ModelConfig& config, const MapOptions& options) {
  if (options.names_are_published) return {};
  const std::vector<TensorRow> no_tensors;
  const MapContext context = make_context(no_tensors, config, options);
  NameHelp help{context.renames, {}};
  for (const auto& [glob, how] : context.family.placements) help.placements.emplace_back(glob, with_numbers(how, context));
  return help;
}

MapContext make_context(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options) {
  MapContext context{table, config, options, family_of(options.model_type.empty() ? config.model_type() : options.model_type, config),
                     {},    {},     {}};
  if (!options.custom_mapping_path.empty()) {
    if (auto pairs = plain_mapping(options.custom_mapping, options.custom_mapping_path)) {
      context.renames = std::move(*pairs);
    } else {
      add_custom_rules(context.family, options.custom_mapping, options.custom_mapping_path);
    }
  }
  if (!options.names_are_published) {
    for (const auto& [name, value] : options.facts)
      context.family.sizes.insert_or_assign(name, Expression::parse(std::to_string(value), "facts"));
    context.family.sizes.insert_or_assign("from_megatron", Expression::parse("1", "facts"));
    if (options.is_value_model) context.family.sizes.insert_or_assign("is_value_model", Expression::parse("1", "facts"));
    require_megatron_rules(context);
    require_known_norms(context);
    check_megatron_args(context);
    if (!context.renames.empty()) add_half_translated(context.family);
  }
  if (options.like) {
    for (const TensorRow& row : options.like->tensors) context.like.emplace(row.name, &row);
  }
  context.adapters = plan_adapters(context);
  return context;
}

Mapping map_tensors(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options, TieAnswer tie) {
  const MapContext context = make_context(table, config, options);
  Mapping mapping;
  NamedTensors named = clean_names(context);
  mapping.targets.unused = std::move(named.unused);
  mapping.notes = std::move(named.notes);
  note_family(context, mapping);
  note_idle_rules(context, named, mapping);

  Published published = publish_names(context, named);
  settle_tie(context, tie, published, mapping);
  settle_quantisation(context, published, mapping);
  settle_architectures(context, published, mapping);
  if (!is_quantised(context, published)) {
    const std::vector<Expected> expected = expected_tensors(context, published);
    if (!options.like) leave_out_needless_filling(context, expected, published, mapping);
    check_shapes(context, expected, published);
    if (!options.like) check_names(context, expected, published, mapping);
  } else {
    mapping.notes.emplace_back("The weights are quantised: names and shapes are not checked against config.json");
  }
  LikeParts parts;
  if (options.like) {
    parts = follow_like(context, published);
    std::vector<std::string> missing;
    for (const TensorRow& row : options.like->tensors) {
      if (published.find(row.name) == nullptr) missing.push_back(row.name);
    }
    note_idle_patterns(context, missing, mapping);
  }
  add_addends(context, parts, published, mapping);
  choose_dtypes(context, published, mapping);
  check_output(published);
  for (const Target& target : published.targets) check_target(target, table);

  for (std::size_t i = 0; i < published.targets.size(); ++i) {
    if (published.filled[i]) mapping.filled.push_back(published.targets[i].name);
  }
  if (!mapping.filled.empty()) {
    mapping.notes.push_back("Filled " + counted(mapping.filled.size(), "missing tensor") + ": " + name_list(mapping.filled, 64));
  }
  mapping.block_by_target = blocks_of(context, published.targets);
  mapping.targets.targets = std::move(published.targets);
  return mapping;
}

}  // namespace unshard
