#include "families/families.h"

#include <algorithm>
#include <array>

#include "families/embedded.h"
#include "json_text.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view common_family = "base";
constexpr int most_ancestors = 8;

[[noreturn]] void refuse(const std::string& label, const std::string& what) {
  throw Error(ErrorCode::bad_input, label + ": " + what);
}

void require_keys(const Json& object, std::initializer_list<std::string_view> known, const std::string& label) {
  if (!object.is_object()) refuse(label, "is no JSON object");
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) refuse(label, "has the unknown key '" + printable(key) + "'");
  }
}

std::string text_of(const Json& value, const std::string& label) {
  if (!value.is_string()) refuse(label, "has something else where a text belongs");
  return value.get<std::string>();
}

std::string text_at(const Json& object, const char* key, const std::string& label) {
  return object.contains(key) ? text_of(object.at(key), label + ": " + key) : std::string();
}

bool flag_at(const Json& object, const char* key, const std::string& label) {
  if (!object.contains(key)) return false;
  if (!object.at(key).is_boolean()) refuse(label, std::string(key) + " is neither true nor false");
  return object.at(key).get<bool>();
}

std::vector<std::string> texts_at(const Json& object, const char* key, const std::string& label) {
  std::vector<std::string> texts;
  if (!object.contains(key)) return texts;
  if (!object.at(key).is_array()) refuse(label, std::string(key) + " is no list");
  for (const Json& item : object.at(key)) texts.push_back(text_of(item, label + ": " + key));
  return texts;
}

/// The pairs of an object of texts.
std::vector<std::pair<std::string, std::string>> pairs_of(const Json& object, const std::string& label) {
  if (!object.is_object()) refuse(label, "is no JSON object");
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [key, value] : object.items()) pairs.emplace_back(key, text_of(value, label + ": '" + printable(key) + "'"));
  return pairs;
}

std::vector<Expression> parse_shape(const std::string& text, const std::string& label) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') refuse(label, "shape '" + printable(text) + "' is not written as [rows, columns]");
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

/// The axes of the whole that a piece's name gives: its variables that the whole's name lacks.
std::vector<std::string> named_axes(const NamePattern& whole, const NamePattern& piece) {
  std::vector<std::string> named;
  for (const std::string& variable : piece.variables()) {
    const auto& known = whole.variables();
    if (std::find(known.begin(), known.end(), variable) == known.end()) named.push_back(variable);
  }
  return named;
}

/// `target` for one piece without axes, else an object of names and axes.
void parse_pieces(Rule& rule, const Json& pieces, const std::string& label) {
  if (pieces.is_string()) {
    rule.pieces.push_back({NamePattern::parse(pieces.get<std::string>(), label), {}, {}});
  } else {
    for (const auto& [name, axes] : pairs_of(pieces, label)) {
      if (!rule.axes) refuse(label, "needs the axes of '" + rule.whole.text() + "'");
      NamePattern pattern = NamePattern::parse(name, label);
      std::vector<std::string> named = named_axes(rule.whole, pattern);
      PieceAxes piece = parse_piece(axes, *rule.axes, named, label);
      rule.pieces.push_back({std::move(pattern), std::move(piece), std::move(named)});
    }
  }
  if (rule.pieces.empty()) refuse(label, "has no target");
  for (const RulePiece& piece : rule.pieces) {
    for (const std::string& variable : rule.whole.variables()) {
      const auto& known = piece.name.variables();
      if (std::find(known.begin(), known.end(), variable) == known.end()) refuse(label, "'" + printable(piece.name.text()) + "' lacks {" + printable(variable) + "}");
    }
    if (!rule.axes && !named_axes(rule.whole, piece.name).empty()) refuse(label, "'" + printable(piece.name.text()) + "' has a variable that '" + printable(rule.whole.text()) + "' lacks");
  }
}

Rule parse_rule(const Json& json, const std::string& label) {
  require_keys(json, {"source", "sources", "target", "targets", "axes", "when", "rest", "only_for"}, label);
  Rule rule;
  rule.whole_is_stored = json.contains("source");
  const char* whole = rule.whole_is_stored ? "source" : "target";
  const char* pieces = rule.whole_is_stored ? (json.contains("targets") ? "targets" : "target") : "sources";
  if (!json.contains(whole) || !json.contains(pieces)) refuse(label, "needs source and target, source and targets, or sources and target");
  const std::string rule_label = label + ": '" + printable(text_at(json, whole, label)) + "'";
  rule.whole = NamePattern::parse(text_at(json, whole, label), rule_label);
  if (json.contains("axes")) rule.axes = parse_whole(text_at(json, "axes", rule_label), rule_label);
  if (json.contains("when")) rule.when = Expression::parse(text_at(json, "when", rule_label), rule_label);
  if (rule.axes && json.at(pieces).is_string()) refuse(rule_label, "has axes on one side only; write targets");
  rule.rest_is_padding = text_at(json, "rest", rule_label) == "padding";
  rule.only_for_like = text_at(json, "only_for", rule_label) == "like";
  parse_pieces(rule, json.at(pieces), rule_label);
  return rule;
}

std::vector<Rule> parse_rules(const Json& json, const std::string& label) {
  if (!json.is_array()) refuse(label, "rules are no list");
  std::vector<Rule> rules;
  for (const Json& rule : json) rules.push_back(parse_rule(rule, label + ": rule " + std::to_string(rules.size() + 1)));
  return rules;
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
    require_keys(json, {"about", "model_types", "like", "without", "text", "sizes", "ranges", "tensors", "rules", "keep_dtype", "leave_out", "known", "ties",
                        "tied_by_default", "base_prefix", "sorted"}, where);
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
    family.sorted = flag_at(json, "sorted", where) || std::any_of(family.rules.begin(), family.rules.end(), [](const Rule& rule) { return !rule.only_for_like; });
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
    if (json.contains("ties")) prepend(family.ties, pairs_of(json.at("ties"), where));
    if (json.contains("tied_by_default")) family.tied_by_default = flag_at(json, "tied_by_default", where);
    if (json.contains("base_prefix")) family.base_prefix = text_at(json, "base_prefix", where);
    if (!json.contains("leave_out")) return;
    for (const auto& [pattern, value] : json.at("leave_out").items()) {
      family.left_out.push_back({pattern, value.is_number_unsigned() ? std::optional<std::uint64_t>(value.get<std::uint64_t>()) : std::nullopt});
    }
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
    for (const TensorSpec& spec : text.tensors) {
      for (const auto& [from, to] : pairs_of(json.at("names"), where)) {
        const auto captures = NamePattern::parse(from, where).match(spec.name.text());
        if (!captures) continue;
        TensorSpec renamed = spec;
        renamed.name = NamePattern::parse(NamePattern::parse(to, where).fill(*captures), where);
        family.tensors.push_back(std::move(renamed));
        break;
      }
    }
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
  require_keys(json, {"about", "sizes", "rules"}, label);
  if (json.contains("sizes")) {
    for (const auto& [name, expression] : pairs_of(json.at("sizes"), label)) family.sizes.insert_or_assign(name, Expression::parse(expression, label));
  }
  prepend(family.rules, parse_rules(json.at("rules"), label));
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const EmbeddedFamily& one : embedded_families()) {
    for (std::string& type : texts_at(parse_json(one.text, std::string(one.name)), "model_types", std::string(one.name))) names.push_back(std::move(type));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace unshard
