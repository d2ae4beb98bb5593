// Rules from JSON; docs/families.md describes the grammar.
#include <algorithm>

#include "families/family_json.h"
#include "unshard/error.h"

namespace unshard::family_json {
namespace {

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The axes of the whole that a piece's name gives: its variables that neither the whole's name has nor are computed.
std::vector<std::string> named_axes(const Rule& rule, const NamePattern& piece) {
  std::vector<std::string> named;
  for (const std::string& variable : piece.variables()) {
    if (!is_computed(variable) && !has(rule.whole.variables(), variable)) named.push_back(variable);
  }
  return named;
}

void add_computed(Rule& rule, const NamePattern& piece, const std::string& label) {
  for (auto& variable : computed_variables(piece, label)) {
    const bool known =
        std::any_of(rule.computed.begin(), rule.computed.end(), [&](const auto& one) { return one.first == variable.first; });
    if (!known) rule.computed.push_back(std::move(variable));
  }
}

/// `axes`: a text, or a list of texts for parts that stand one behind the other along the first dimension, or {"along", "parts"}.
void add_piece(Rule& rule, const std::string& name, const Json& axes_or_parts, const std::string& label) {
  RulePiece piece{NamePattern::parse(name, label), {}, {}};
  const bool is_along = axes_or_parts.is_object();
  if (is_along) {
    require_keys(axes_or_parts, {"along", "parts"}, label);
    if (!axes_or_parts.contains("along") || !axes_or_parts.at("along").is_number_unsigned() || !axes_or_parts.contains("parts") ||
        !axes_or_parts.at("parts").is_array())
      refuse(label, "the parts of '" + printable(name) + "' need a list `parts` and a dimension `along`");
    piece.along = axes_or_parts.at("along").get<std::size_t>();
  }
  const Json& axes = is_along ? axes_or_parts.at("parts") : axes_or_parts;
  piece.named = named_axes(rule, piece.name);
  add_computed(rule, piece.name, label);
  if (!axes.is_array()) {
    piece.parts.push_back(parse_piece(text_of(axes, label), *rule.axes, piece.named, label));
  } else {
    for (const Json& part : axes) {
      piece.parts.push_back(parse_piece(text_of(part, label), *rule.axes, piece.named, label));
      if (piece.parts.back().dimensions.axes.size() <= piece.along ||
          piece.parts.back().dimensions.axes.size() != piece.parts.front().dimensions.axes.size())
        refuse(label,
               "the parts of '" + printable(name) + "' need the same number of dimensions, more than " + std::to_string(piece.along));
    }
    if (piece.parts.empty()) refuse(label, "'" + printable(name) + "' has no part");
  }
  rule.pieces.push_back(std::move(piece));
}

/// A piece without axes takes the whole as it is, or one index of the dimension that is stacked.
void add_renamed(Rule& rule, const std::string& name, const std::string& label) {
  rule.pieces.push_back({NamePattern::parse(name, label), {}, {}});
  std::vector<std::string> named = named_axes(rule, rule.pieces.back().name);
  add_computed(rule, rule.pieces.back().name, label);
  std::erase(named, rule.stacked);
  if (!named.empty()) refuse(label, "'" + printable(name) + "' has a variable that '" + printable(rule.whole.text()) + "' lacks");
}

/// `target` for one piece without axes, else an object of names and axes.
void parse_pieces(Rule& rule, const Json& pieces, const std::string& label) {
  if (pieces.is_string()) {
    add_renamed(rule, pieces.get<std::string>(), label);
  } else {
    if (!pieces.is_object()) refuse(label, "targets (or sources) are no JSON object");
    for (const auto& [name, axes] : pieces.items()) {
      if (!rule.axes) refuse(label, "needs the axes of '" + rule.whole.text() + "'");
      add_piece(rule, name, axes, label);
    }
  }
  if (rule.pieces.empty()) refuse(label, "has no target");
  for (const RulePiece& piece : rule.pieces) {
    for (const std::string& variable : rule.whole.variables()) {
      const bool used =
          std::any_of(rule.computed.begin(), rule.computed.end(), [&](const auto& one) { return has(one.second.names(), variable); });
      if (!used && !has(piece.name.variables(), variable))
        refuse(label, "'" + printable(piece.name.text()) + "' lacks {" + printable(variable) + "}");
    }
  }
}

/// `decoder.layers[.{l}].norm`: the name of one layer's tensor, and, without what stands in brackets, of the tensor that stacks all layers.
struct WholeName {
  std::string text;
  std::string stacked;  ///< the variable of the first dimension; "": not stacked
};
std::vector<WholeName> whole_names(const std::string& text, const std::string& label) {
  const std::size_t open = text.find('['), close = text.find(']');
  if (open == std::string::npos && close == std::string::npos) return {{text, ""}};
  if (open == std::string::npos || close == std::string::npos || close < open || text.find('[', open + 1) != std::string::npos ||
      text.find(']', close + 1) != std::string::npos)
    refuse(label, "'" + printable(text) + "' needs one pair of brackets, as in layers[.{l}].norm");
  const std::string inside = text.substr(open + 1, close - open - 1);
  const NamePattern bracketed = NamePattern::parse(inside, label);
  if (bracketed.variables().size() != 1 || inside.find('*') != std::string::npos)
    refuse(label, "'[" + printable(inside) + "]' needs one variable, as in layers[.{l}].norm");
  return {{text.substr(0, open) + inside + text.substr(close + 1), ""},
          {text.substr(0, open) + text.substr(close + 1), bracketed.variables().front()}};
}

float added(const Json& value, const std::string& label) {
  constexpr int most = 1000;  // whole numbers that every element type has
  if (!value.is_number_integer() || value.get<double>() < -most || value.get<double>() > most)
    refuse(label, "add is no small whole number");
  return static_cast<float>(value.get<int>());
}

void parse_rule(const Json& json, const std::string& label, std::vector<Rule>& rules) {
  require_keys(json, {"source", "sources", "target", "targets", "axes", "when", "rest", "only_for", "add", "refuse"}, label);
  const bool whole_is_stored = json.contains("source");
  const char* whole = whole_is_stored ? "source" : "target";
  const char* pieces = whole_is_stored ? (json.contains("targets") ? "targets" : "target") : "sources";
  const bool refuses = json.contains("refuse");
  if (!json.contains(whole) || json.contains(pieces) == refuses)
    refuse(label, "needs source and target, source and targets, sources and target, or source and refuse");
  const std::string rule_label = label + ": '" + printable(text_at(json, whole, label)) + "'";
  for (const WholeName& name : whole_names(text_at(json, whole, label), rule_label)) {
    Rule rule;
    rule.whole_is_stored = whole_is_stored;
    rule.whole = NamePattern::parse(name.text, rule_label);
    if (json.contains("axes")) {
      rule.axes = parse_whole((name.stacked.empty() ? "" : name.stacked + " ") + text_at(json, "axes", rule_label), rule_label);
    } else {
      rule.stacked = name.stacked;
    }
    if (json.contains("when")) rule.when = Expression::parse(text_at(json, "when", rule_label), rule_label);
    if (json.contains("add")) rule.add = added(json.at("add"), rule_label);
    if (refuses) {
      rule.refusal = text_at(json, "refuse", rule_label);
      rules.push_back(std::move(rule));
      continue;
    }
    if (rule.axes && json.at(pieces).is_string()) refuse(rule_label, "has axes on one side only; write targets");
    rule.rest_is_padding = text_at(json, "rest", rule_label) == "padding";
    rule.only_for_like = text_at(json, "only_for", rule_label) == "like";
    parse_pieces(rule, json.at(pieces), rule_label);
    rules.push_back(std::move(rule));
  }
}

}  // namespace

std::vector<Rule> parse_rules(const Json& json, const std::string& label) {
  if (!json.is_array()) refuse(label, "rules are no list");
  std::vector<Rule> rules;
  std::size_t number = 0;
  for (const Json& rule : json) parse_rule(rule, label + ": rule " + std::to_string(++number), rules);
  return rules;
}

}  // namespace unshard::family_json
