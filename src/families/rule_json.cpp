// Rules from JSON; docs/families.md describes the grammar.
#include <algorithm>

#include "families/family_json.h"
#include "unshard/error.h"

namespace unshard::family_json {
namespace {

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
      if (std::find(known.begin(), known.end(), variable) == known.end())
        refuse(label, "'" + printable(piece.name.text()) + "' lacks {" + printable(variable) + "}");
    }
    if (!rule.axes && !named_axes(rule.whole, piece.name).empty())
      refuse(label, "'" + printable(piece.name.text()) + "' has a variable that '" + printable(rule.whole.text()) + "' lacks");
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

}  // namespace

std::vector<Rule> parse_rules(const Json& json, const std::string& label) {
  if (!json.is_array()) refuse(label, "rules are no list");
  std::vector<Rule> rules;
  for (const Json& rule : json) rules.push_back(parse_rule(rule, label + ": rule " + std::to_string(rules.size() + 1)));
  return rules;
}

}  // namespace unshard::family_json
