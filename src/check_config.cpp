#include "check_config.h"

#include <algorithm>
#include <map>
#include <string>

#include "mapping_steps.h"
#include "names.h"
#include "unshard/agree.h"
#include "unshard/error.h"
#include "unshard/file_system.h"

namespace unshard {
namespace {

constexpr std::size_t most_shapes = 100;
constexpr std::size_t most_names = 20;

/// Tensors whose type is not the one that config.json states, apart from those that a family keeps as they are.
void compare_types(const MapContext& context, const Published& published, std::vector<Finding>& findings) {
  const auto stated = context.config.dtype();
  if (!stated || !info(*stated).castable) return;
  std::map<DType, std::vector<std::string>> others;
  for (const Target& target : published.targets) {
    if (target.dtype == *stated || !info(target.dtype).castable || any_glob_matches(context.family.keep_dtype, target.name)) continue;
    others[target.dtype].push_back(target.name);
  }
  for (const auto& [dtype, names] : others) {
    findings.push_back({Severity::note, std::string(base_name(context.config.path())),
                        "says " + std::string(info(*stated).name) + ", but " + counted(names.size(), "tensor") +
                            (names.size() == 1 ? " is " : " are ") + std::string(info(dtype).name) + ": " + name_list(names)});
  }
}

std::vector<Finding> compare(const MapContext& context, bool lacks_files) {
  std::vector<Finding> findings;
  const Published published = publish_names(context, clean_names(context));
  if (is_quantised(context, published)) return findings;
  const std::vector<Expected> expected = expected_tensors(context, published);
  for (ShapeConflict& conflict : shape_conflicts(context, expected, published, most_shapes))
    findings.push_back({Severity::error, std::move(conflict.name), std::move(conflict.text)});
  const NameDifferences names = compare_names(context, expected, published);
  const std::string config(base_name(context.config.path()));
  if (!names.missing.empty() && !lacks_files) {
    findings.push_back(
        {Severity::error, config,
         "expects " + counted(names.missing.size(), "tensor") + " that no file holds: " + name_list(names.missing, most_names)});
  }
  if (!expected.empty() && !names.unexpected.empty()) {
    findings.push_back(
        {Severity::note, config,
         "does not expect " + counted(names.unexpected.size(), "tensor") + " that the files hold: " + name_list(names.unexpected)});
  }
  compare_types(context, published, findings);
  return findings;
}

}  // namespace

std::vector<Finding> compare_with_config(const std::vector<TensorRow>& table, const ModelConfig& config, bool lacks_files,
                                         const std::string& shape_hint) {
  if (table.empty()) return {};
  std::vector<Finding> findings;
  const auto failure = attempt([&] {
    MapOptions options;
    options.dtype.kind = DTypeChoice::Kind::keep;
    options.lora.what = LoraChoice::What::drop;
    options.shape_hint = shape_hint;
    findings = compare(make_context(table, config, options), lacks_files);
  });
  if (failure) findings.push_back({Severity::error, std::string(base_name(config.path())), failure->what(), failure->code()});
  return findings;
}

std::string obstacle_to_merge(const std::vector<TensorRow>& table, const ModelConfig& config, MapOptions options) {
  options.lora.what = LoraChoice::What::drop;  // adapters are looked at by themselves
  const auto failure = attempt([&] {
    const bool asks = tie_question(table, config, options).has_value();
    (void)map_tensors(table, config, options, asks ? TieAnswer::equal : TieAnswer::not_asked);
  });
  if (failure && failure->code() == ErrorCode::internal) throw Error(*failure);
  return failure ? failure->what() : "";
}

}  // namespace unshard
