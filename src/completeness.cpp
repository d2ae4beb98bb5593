// Names and shapes against config.json: what a folder of this model type holds, and what is found.
#include <algorithm>
#include <unordered_set>

#include "checked_math.h"
#include "mapping_steps.h"
#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_expected = 8'000'000;

/// What says which tensors there should be, for messages.
std::string described_by(const MapContext& context) {
  const bool by_options = context.config.is_overridden() || !context.options.model_type.empty();
  return printable(context.config.path(), 4096) + (by_options ? " (options included)" : "");
}

/// The tensors of one line of the table, for all values of its variables.
class Expansion {
 public:
  Expansion(const MapContext& context, const TensorSpec& spec, std::string_view prefix, std::vector<Expected>& out)
      : context_(context), spec_(spec), prefix_(prefix), out_(out), computed_(computed_variables(spec.name, spec.name.text())) {
    for (const std::string& variable : spec.name.variables()) add_variable(variable);
    const auto uses_variable = [&](const Expression& expression) {
      const std::vector<std::string> names = expression.names();
      return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return std::find(variables_.begin(), variables_.end(), name) != variables_.end();
      });
    };
    shape_varies_ = spec.shape && std::any_of(spec.shape->begin(), spec.shape->end(), uses_variable);
    if (spec.shape && !shape_varies_) shape_ = shape_of({});
  }

  void run() {
    Captures captures;
    walk(0, captures);
  }

 private:
  /// A variable of the name, or those in a computed one that have a range.
  void add_variable(const std::string& variable) {
    if (!is_computed(variable)) return variables_.push_back(variable);
    for (const auto& [name, expression] : computed_) {
      if (name != variable) continue;
      for (const std::string& inner : expression.names()) {
        if (context_.family.ranges.contains(inner)) variables_.push_back(inner);
      }
    }
  }

  void walk(std::size_t depth, Captures& captures) {
    const std::vector<std::string>& variables = variables_;
    if (depth == variables.size()) return emit(captures);
    const auto range = context_.family.ranges.find(variables[depth]);
    const auto count = range == context_.family.ranges.end() ? std::nullopt : range->second.value(*context_.names(captures));
    if (!count) return;
    if (*count > most_expected) {
      throw Error(ErrorCode::bad_input, printable(context_.config.path(), 4096) + ": " + range->second.text() + " = " +
                                            std::to_string(*count) + " is impossible; correct it");
    }
    for (std::uint64_t i = 0; i < *count; ++i) {
      captures.emplace_back(variables[depth], std::to_string(i));
      // A condition that only the outer variables decide is decided here, not for every expert.
      if (depth + 1 == variables.size() || depth > 0 || exists(captures)) walk(depth + 1, captures);
      captures.pop_back();
    }
  }

  [[nodiscard]] bool exists(const Captures& captures) const {
    if (!spec_.when) return true;
    const auto value = spec_.when->value(*context_.names(captures));
    return value && *value != 0;
  }

  void emit(const Captures& captures) {
    if (variables_.size() < 2 && !exists(captures)) return;
    if (out_.size() >= most_expected) {
      throw Error(ErrorCode::bad_input, printable(context_.config.path(), 4096) + ": implies more than " + std::to_string(most_expected) +
                                            " tensors; correct it");
    }
    std::string name = computed_.empty()
                           ? spec_.name.fill(captures)
                           : spec_.name.fill(with_computed(computed_, captures, *context_.names(captures), spec_.name.text()));
    if (name.rfind(prefix_, 0) == 0) name.erase(0, prefix_.size());
    out_.push_back({std::move(name), &spec_, shape_varies_ ? shape_of(captures) : shape_});
  }

  [[nodiscard]] std::optional<Shape> shape_of(const Captures& captures) const {
    const auto names = context_.names(captures);
    Shape shape;
    for (const Expression& expression : *spec_.shape) {
      const auto value = expression.value(*names);
      if (!value) return std::nullopt;
      shape.push_back(*value);
    }
    return shape;
  }

  const MapContext& context_;
  const TensorSpec& spec_;
  std::string_view prefix_;
  std::vector<Expected>& out_;
  std::vector<std::pair<std::string, Expression>> computed_;
  std::vector<std::string> variables_;
  bool shape_varies_ = false;
  std::optional<Shape> shape_;
};

/// What is in front of the table's names but not of the stored ones: the base model was saved alone.
std::string_view missing_prefix(const Family& family, const Published& published) {
  const std::string& prefix = family.base_prefix;
  if (prefix.empty()) return {};
  const auto begins = [&](const Target& target) { return target.name.rfind(prefix, 0) == 0; };
  if (std::any_of(published.targets.begin(), published.targets.end(), begins)) return {};
  const auto in_table = [&](const Target& target) {
    return std::any_of(family.tensors.begin(), family.tensors.end(),
                       [&](const TensorSpec& spec) { return spec.name.match(prefix + target.name).has_value(); });
  };
  return std::any_of(published.targets.begin(), published.targets.end(), in_table) ? std::string_view(prefix) : std::string_view();
}

/// `vocab_size = 60, hidden_size = 16`: the numbers of config.json behind a shape.
std::string numbers_behind(const MapContext& context, const TensorSpec& spec) {
  std::vector<std::string> keys;
  const auto add = [&](const auto& self, const Expression& expression, int depth) -> void {
    for (const std::string& name : expression.names()) {
      const auto size = context.family.sizes.find(name);
      if (size != context.family.sizes.end() && depth < 4 && size->second.text() != name) self(self, size->second, depth + 1);
      if (!context.config.has(name) || std::find(keys.begin(), keys.end(), name) != keys.end()) continue;
      keys.push_back(name);
    }
  };
  for (const Expression& expression : *spec.shape) add(add, expression, 0);
  std::string text;
  for (const std::string& key : keys) {
    if (const auto number = context.config.number(key)) text += (text.empty() ? "" : ", ") + key + " = " + std::to_string(*number);
  }
  return text;
}

/// Whether the tensor is of a layer (an expert …) beyond those that config.json counts. Layers that predict further tokens are numbered
/// behind the counted ones.
bool is_beyond_count(const MapContext& context, const std::string& name) {
  const Expression predicting = Expression::parse("num_nextn_predict_layers | num_mtp_modules | 0", "");
  const auto is_beyond = [&](const Captures& captures) {
    const auto names = context.names(captures);
    return std::any_of(captures.begin(), captures.end(), [&](const auto& capture) {
      const auto range = context.family.ranges.find(capture.first);
      const auto count = range == context.family.ranges.end() ? std::nullopt : range->second.value(*names);
      if (!count) return false;
      const std::uint64_t number = number_of(capture.second);
      return number >= *count && (capture.first != "l" || number - *count >= predicting.value(*names).value_or(0));
    });
  };
  return std::any_of(context.family.tensors.begin(), context.family.tensors.end(), [&](const TensorSpec& spec) {
    const auto captures = spec.name.match(name);
    return captures && is_beyond(*captures);
  });
}

/// Loaders leave out such a layer without a word. A published model is moved as it is.
void require_counts(const MapContext& context, const Published& published, const std::vector<std::string>& unexpected) {
  if (context.options.is_published_model) return;
  const std::string prefix(missing_prefix(context.family, published));
  std::vector<std::string> beyond;
  for (const std::string& name : unexpected)
    if (is_beyond_count(context, prefix + name)) beyond.push_back(name);
  if (beyond.empty()) return;
  throw Error(ErrorCode::bad_input, name_list(beyond) + ": in the checkpoint, but " + described_by(context) +
                                        " counts fewer layers or experts; give the model's own config.json or numbers, or leave " +
                                        (beyond.size() == 1 ? "it" : "them") + " out with --drop");
}

/// Whether the stored tensor may be the whole one but for its end, and something is known that would explain it.
bool may_be_cut(const MapContext& context, const Shape& stored, const Shape& implied) {
  if (context.options.shape_hint.empty() || stored.size() != implied.size()) return false;
  for (std::size_t d = 0; d < stored.size(); ++d) {
    if (stored[d] > implied[d]) return false;
  }
  return true;
}

}  // namespace

bool is_quantised(const MapContext& context, const Published& published) {
  const auto holds_codes = [](const Target& target) {
    const bool one_byte = info(target.dtype).size_bytes == 1 && target.dtype != DType::boolean;
    return (one_byte || target.dtype == DType::i32) && target.shape.size() >= 2;
  };
  const auto holds_scales = [](const Target& target) {  // weight_scale_inv, scales, weight_scale …
    const std::string_view name = target.name;
    return name.substr(name.rfind('.') + 1).find("scale") != std::string_view::npos;
  };
  return std::any_of(published.targets.begin(), published.targets.end(), holds_codes) &&
         (context.config.has("quantization_config") || std::any_of(published.targets.begin(), published.targets.end(), holds_scales));
}

std::vector<Expected> expected_tensors(const MapContext& context, const Published& published) {
  std::vector<Expected> expected;
  const std::string_view prefix = missing_prefix(context.family, published);
  for (const TensorSpec& spec : context.family.tensors) Expansion(context, spec, prefix, expected).run();
  return expected;
}

std::vector<ShapeConflict> shape_conflicts(const MapContext& context, const std::vector<Expected>& expected, const Published& published,
                                           std::size_t most) {
  std::vector<ShapeConflict> conflicts;
  for (const Expected& one : expected) {
    if (conflicts.size() == most) break;
    const Target* target = published.find(one.name);
    if (target == nullptr || !one.shape || target->shape == *one.shape) continue;
    const std::string numbers = numbers_behind(context, *one.spec);
    conflicts.push_back({one.name, "shape " + to_string(target->shape) + ", but " + described_by(context) + " implies " +
                                       to_string(*one.shape) + (numbers.empty() ? "" : " (" + numbers + ")") +
                                       (may_be_cut(context, target->shape, *one.shape) ? "; " + context.options.shape_hint : "") +
                                       "; give the model's own config.json or correct these numbers"});
  }
  return conflicts;
}

void check_shapes(const MapContext& context, const std::vector<Expected>& expected, const Published& published) {
  for (const ShapeConflict& first : shape_conflicts(context, expected, published, 1))
    throw Error(ErrorCode::bad_input, printable(first.name) + ": " + first.text);
}

NameDifferences compare_names(const MapContext& context, const std::vector<Expected>& expected, const Published& published) {
  const bool wants_head = has_language_head(context, published) && !find_tie(context, published).tied;
  std::unordered_set<std::string_view> known;
  NameDifferences differences;
  for (const Expected& one : expected) {
    const bool unwanted_head = one.spec->head && !wants_head;
    if (!unwanted_head) known.insert(one.name);
    if (published.find(one.name) == nullptr && !one.spec->optional && !unwanted_head) differences.missing.push_back(one.name);
  }
  for (const Target& target : published.targets) {
    if (!known.contains(target.name) && !any_glob_matches(context.family.known, target.name)) differences.unexpected.push_back(target.name);
  }
  return differences;
}

void leave_out_needless_filling(const MapContext& context, const std::vector<Expected>& expected, Published& published, Mapping& mapping) {
  if (expected.empty() || std::find(published.filled.begin(), published.filled.end(), true) == published.filled.end()) return;
  const std::vector<std::string> unexpected = compare_names(context, expected, published).unexpected;
  const std::unordered_set<std::string_view> needless(unexpected.begin(), unexpected.end());
  std::vector<bool> unwanted(published.targets.size(), false);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < published.targets.size(); ++i) {
    if (!published.filled[i] || !needless.contains(published.targets[i].name)) continue;
    unwanted[i] = true;
    names.push_back(published.targets[i].name);
  }
  if (names.empty()) return;
  mapping.notes.push_back("Not taken from --fill-missing-from: " + counted(names.size(), "tensor") + " that " + described_by(context) +
                          " does not expect: " + name_list(names));
  published.remove_if(unwanted);
}

void note_idle_patterns(const MapContext& context, const std::vector<std::string>& missing, Mapping& mapping) {
  for (const std::string& pattern : context.options.allow_missing) {
    if (std::none_of(missing.begin(), missing.end(), [&](const std::string& name) { return glob_matches(pattern, name); }))
      mapping.notes.push_back("--allow-missing " + printable(pattern) + " matches no missing tensor");
  }
}

void check_names(const MapContext& context, const std::vector<Expected>& expected, const Published& published, Mapping& mapping) {
  const NameDifferences differences = compare_names(context, expected, published);
  note_idle_patterns(context, differences.missing, mapping);
  std::vector<std::string> missing, dropped;
  for (const std::string& name : differences.missing) {
    if (any_glob_matches(context.options.allow_missing, name)) continue;
    missing.push_back(name);
    if (any_glob_matches(context.options.drop, name)) dropped.push_back(name);
  }
  const std::vector<std::string>& others = differences.unexpected;
  if (!dropped.empty()) {
    throw Error(ErrorCode::bad_input, name_list(dropped) + ": left out by --drop, but " + described_by(context) + " expects " +
                                          (dropped.size() == 1 ? "it" : "them") + "; allow that by --allow-missing, or leave --drop out");
  }
  if (!missing.empty()) {
    std::string text = name_list(missing) + ": missing, " + described_by(context) + " expects " +
                       (missing.size() == 1 ? "it" : std::to_string(missing.size()) + " such tensors");
    if (!others.empty()) text += "; found but not expected: " + name_list(others);
    const bool filling = std::any_of(context.table.begin(), context.table.end(), [](const TensorRow& row) { return row.origin != 0; });
    const std::string fill = filling ? "" : "take them from --fill-missing-from, ";
    throw Error(ErrorCode::bad_input, text + (filling ? " (neither in the checkpoint nor in --fill-missing-from)" : "") +
                                          "; name them with --custom-mapping, " + fill + "or go without by --allow-missing");
  }
  // What a rule has translated should be in the table: a layer more than config.json says, norms that the model type does not have.
  if (!expected.empty() && !context.options.names_are_published && context.options.custom_mapping_path.empty()) {
    std::vector<std::string> foreign = others;
    std::erase_if(foreign, [&](const std::string& name) { return published.filled[published.by_name.at(name)]; });
    if (!foreign.empty()) {
      throw Error(ErrorCode::bad_input, name_list(foreign) + ": in the checkpoint, but " + described_by(context) +
                                            " implies no such tensor" + (foreign.size() == 1 ? "" : "s") +
                                            "; give the model's own config.json, or leave them out with --drop");
    }
  }
  if (context.options.names_are_published) require_counts(context, published, others);
  if (!expected.empty() && !others.empty()) {
    mapping.notes.push_back("Passing through " + counted(others.size(), "tensor") + " that a " + context.family.name +
                            " model need not have: " + name_list(others));
  }
}

}  // namespace unshard
