#include "families/families.h"

#include <algorithm>
#include <array>

#include "families/embedded.h"
#include "families/family_json.h"
#include "json_text.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using family_json::flag_at;
using family_json::Json;
using family_json::pairs_of;
using family_json::parse_rules;
using family_json::refuse;
using family_json::require_keys;
using family_json::text_at;
using family_json::texts_at;

constexpr std::string_view common_family = "base";
constexpr int most_ancestors = 8;

std::vector<Expression> parse_shape(const std::string& text, const std::string& label) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']')
    refuse(label, "shape '" + printable(text) + "' is not written as [rows, columns]");
  std::vector<Expression> shape;
  int level = 0;
  std::size_t begin = 1;
  for (std::size_t i = 1; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(') ++level;
    if (c == ')') --level;
    if ((c != ',' || level > 0) && i + 1 != text.size()) continue;
    if (i > begin) shape.push_back(Expression::parse(std::string_view(text).substr(begin, i - begin), label));
    begin = i + 1;
  }
  if (shape.size() > max_rank) refuse(label, "shape '" + printable(text) + "' has more than 8 dimensions");
  return shape;
}

TensorSpec parse_tensor(const std::string& name, const Json& value, const std::string& label) {
  TensorSpec spec{NamePattern::parse(name, label), std::nullopt, false, false, std::nullopt};
  if (value.is_string()) {
    spec.shape = parse_shape(value.get<std::string>(), label);
    return spec;
  }
  require_keys(value, {"shape", "optional", "head", "when"}, label);
  if (value.contains("shape")) spec.shape = parse_shape(text_at(value, "shape", label), label);
  if (value.contains("when")) spec.when = Expression::parse(text_at(value, "when", label), label);
  spec.optional = flag_at(value, "optional", label);
  spec.head = flag_at(value, "head", label);
  return spec;
}

void erase_tensors(std::vector<TensorSpec>& tensors, const std::vector<std::string>& globs) {
  std::erase_if(tensors, [&](const TensorSpec& spec) {
    return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return glob_matches(glob, spec.name.text()); });
  });
}

template <class T>
void prepend(std::vector<T>& to, std::vector<T> front) {
  to.insert(to.begin(), std::make_move_iterator(front.begin()), std::make_move_iterator(front.end()));
}

/// Reads family files; each is parsed where it is asked for.
class Loader {
 public:
  explicit Loader(const ModelConfig& config) : config_(config) {}

  /// The family of a file's name.
  Family load(std::string_view name) {
    const std::span<const EmbeddedFamily> all = embedded_families();
    const auto found = std::find_if(all.begin(), all.end(), [&](const EmbeddedFamily& one) { return one.name == name; });
    if (found == all.end()) refuse("families", "there is no family '" + printable(name) + "'");
    return read(parse_json(found->text, label(name)), name);
  }

  Family load_type(const std::string& model_type) {
    for (const EmbeddedFamily& one : embedded_families()) {
      if (one.text.find('"' + model_type + '"') == std::string_view::npos)
        continue;  // parsing every file takes longer than mapping a small model
      const Json json = parse_json(one.text, label(one.name));
      const std::vector<std::string> types = texts_at(json, "model_types", label(one.name));
      if (std::find(types.begin(), types.end(), model_type) != types.end()) return read(json, one.name);
    }
    Family common = load(common_family);
    common.name.clear();
    return common;
  }

 private:
  static std::string label(std::string_view name) { return "family " + std::string(name); }

  Family read(const Json& json, std::string_view name) {
    const std::string where = label(name);
    require_keys(json, {"about",           "model_types",        "like",       "without",  "text",
                        "sizes",           "interleaved_rotary", "ranges",     "tensors",  "rules",
                        "keep_dtype",      "transposed",         "leave_out",  "known",    "ties",
                        "tied_by_default", "base_prefix",        "sorted",     "megatron", "megatron_names",
                        "placements",      "zero_centred_norms", "no_megatron"},
                 where);
    if (++depth_ > most_ancestors) refuse(where, "is like itself");
    Family family;
    if (name != common_family) family = load(json.contains("like") ? text_at(json, "like", where) : std::string(common_family));
    family.name = name;
    family.model_types = texts_at(json, "model_types", where);
    erase_tensors(family.tensors, texts_at(json, "without", where));
    if (json.contains("text")) add_language_model(family, json.at("text"), where);
    add_expressions(family.sizes, json, "sizes", where);
    add_expressions(family.ranges, json, "ranges", where);
    add_tensors(family, json, where);
    if (json.contains("rules")) prepend(family.rules, parse_rules(json.at("rules"), where));
    add_lists(family, json, where);
    add_megatron(family, json, where);
    family.sorted = flag_at(json, "sorted", where) ||
                    std::any_of(family.rules.begin(), family.rules.end(), [](const Rule& rule) { return !rule.only_for_like; });
    --depth_;
    return family;
  }

  static void add_expressions(Expressions& expressions, const Json& json, const char* key, const std::string& where) {
    if (!json.contains(key)) return;
    for (const auto& [name, text] : pairs_of(json.at(key), where)) expressions.insert_or_assign(name, Expression::parse(text, where));
  }

  static void add_tensors(Family& family, const Json& json, const std::string& where) {
    if (!json.contains("tensors")) return;
    if (!json.at("tensors").is_object()) refuse(where, "tensors are no JSON object");
    for (const auto& [name, value] : json.at("tensors").items()) {
      const std::string pattern = name;
      std::erase_if(family.tensors, [&](const TensorSpec& spec) { return spec.name.text() == pattern; });
      family.tensors.push_back(parse_tensor(name, value, where + ": '" + name + "'"));
    }
  }

  static void add_lists(Family& family, const Json& json, const std::string& where) {
    prepend(family.keep_dtype, texts_at(json, "keep_dtype", where));
    prepend(family.known, texts_at(json, "known", where));
    prepend(family.transposed, texts_at(json, "transposed", where));
    if (json.contains("ties")) prepend(family.ties, pairs_of(json.at("ties"), where));
    if (json.contains("tied_by_default")) family.tied_by_default = flag_at(json, "tied_by_default", where);
    if (json.contains("base_prefix")) family.base_prefix = text_at(json, "base_prefix", where);
    if (!json.contains("leave_out")) return;
    for (const auto& [pattern, value] : json.at("leave_out").items()) {
      family.left_out.push_back(
          {pattern, value.is_number_unsigned() ? std::optional<std::uint64_t>(value.get<std::uint64_t>()) : std::nullopt});
    }
  }

  static void add_megatron(Family& family, const Json& json, const std::string& where) {
    if (json.contains("no_megatron")) {
      family.no_megatron = text_at(json, "no_megatron", where);
      family.megatron.clear();
    }
    if (json.contains("zero_centred_norms")) family.zero_centred_norms = flag_at(json, "zero_centred_norms", where);
    if (json.contains("interleaved_rotary")) family.interleaved_rotary = flag_at(json, "interleaved_rotary", where);
    if (json.contains("megatron")) prepend(family.megatron, parse_rules(json.at("megatron"), where + ": megatron"));
    if (json.contains("placements")) prepend(family.placements, pairs_of(json.at("placements"), where));
    if (!json.contains("megatron_names")) return;
    std::vector<OtherName> names;
    for (const auto& [from, to] : pairs_of(json.at("megatron_names"), where)) {
      names.push_back({NamePattern::parse(from, where), NamePattern::parse(to, where), {}});
      names.back().computed = computed_variables(names.back().to, where);
    }
    prepend(family.megatron_names, std::move(names));
  }

  /// The published name of a language model's tensor inside a multimodal model.
  using RenamedText = std::vector<std::pair<NamePattern, NamePattern>>;
  static std::optional<NamePattern> renamed(const RenamedText& names, const NamePattern& name, const std::string& where) {
    for (const auto& [from, to] : names) {
      if (const auto captures = from.match(name.text())) return NamePattern::parse(to.fill(*captures), where);
    }
    return std::nullopt;
  }

  /// The tensors of the language model inside a multimodal one, under the names that they have there.
  void add_language_model(Family& family, const Json& json, const std::string& where) {
    require_keys(json, {"family", "names", "without"}, where);
    std::string name = text_at(json, "family", where);
    Family text;
    if (!name.empty() && name.front() == '@') {
      const auto type = config_.text(name.substr(1));
      if (!type) return;
      text = load_type(*type);
    } else {
      text = load(name);
    }
    erase_tensors(text.tensors, texts_at(json, "without", where));
    RenamedText names;
    for (const auto& [from, to] : pairs_of(json.at("names"), where))
      names.emplace_back(NamePattern::parse(from, where), NamePattern::parse(to, where));
    for (const TensorSpec& spec : text.tensors) {
      if (auto here = renamed(names, spec.name, where)) {
        family.tensors.push_back(spec);
        family.tensors.back().name = std::move(*here);
      }
    }
    for (Rule& rule : text.megatron) {
      for (RulePiece& piece : rule.pieces) {
        if (auto here = renamed(names, piece.name, where)) piece.name = std::move(*here);
      }
    }
    prepend(family.megatron, std::move(text.megatron));
    prepend(family.megatron_names, std::move(text.megatron_names));
    prepend(family.placements, std::move(text.placements));
    family.zero_centred_norms = text.zero_centred_norms;
    family.interleaved_rotary = text.interleaved_rotary;
    family.sizes.insert(text.sizes.begin(), text.sizes.end());
    family.ranges.insert(text.ranges.begin(), text.ranges.end());
    prepend(family.keep_dtype, std::move(text.keep_dtype));
    if (!family.tied_by_default) family.tied_by_default = text.tied_by_default;
  }

  const ModelConfig& config_;
  int depth_ = 0;
};

}  // namespace

Family family_of(const std::string& model_type, const ModelConfig& config) {
  return Loader(config).load_type(model_type);
}

std::optional<std::vector<std::pair<std::string, std::string>>> plain_mapping(const std::string& text, const std::string& path) {
  const std::string label = printable(path, 4096);
  const Json json = parse_json(text, label);
  if (json.is_object() && json.contains("rules") && json.at("rules").is_array()) return std::nullopt;
  auto pairs = pairs_of(json, label);
  for (const auto& [from, to] : pairs) {
    if (from.empty()) refuse(label, "an empty name part stands for every name; remove it");
  }
  return pairs;
}

void add_custom_rules(Family& family, const std::string& text, const std::string& path) {
  const std::string label = printable(path, 4096);
  const Json json = parse_json(text, label);
  require_keys(json, {"about", "sizes", "rules", "placements"}, label);
  if (json.contains("placements")) prepend(family.placements, pairs_of(json.at("placements"), label));
  if (json.contains("sizes")) {
    for (const auto& [name, expression] : pairs_of(json.at("sizes"), label))
      family.sizes.insert_or_assign(name, Expression::parse(expression, label));
  }
  const std::vector<Rule> rules = parse_rules(json.at("rules"), label);
  prepend(family.rules, rules);
  prepend(family.megatron, rules);
  family.custom_rules = rules.size();
}

std::string megatron_name(const Family& family, const Scope& scope, std::string name) {
  for (const OtherName& other : family.megatron_names) {
    const auto captures = other.from.match(name);
    if (!captures) continue;
    name = other.to.fill(other.computed.empty() ? *captures : with_computed(other.computed, *captures, *scope(*captures), name));
  }
  return name;
}

std::vector<std::string> megatron_family_names() {
  const ModelConfig config;
  std::vector<std::string> names = family_names();
  std::erase_if(names, [&](const std::string& type) { return family_of(type, config).megatron.empty(); });
  return names;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const EmbeddedFamily& one : embedded_families()) {
    for (std::string& type : texts_at(parse_json(one.text, std::string(one.name)), "model_types", std::string(one.name)))
      names.push_back(std::move(type));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace unshard
