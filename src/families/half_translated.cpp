#include "families/half_translated.h"

#include <algorithm>

#include "unshard/mapping.h"

namespace unshard {
namespace {

constexpr std::string_view layer = "{l}.";
constexpr const char* label = "half-translated names";

/// What `name` and the published one have in common, up to the layer, then the rest of the published one; "" where there is no layer.
std::string half_of(const std::string& name, const std::string& published) {
  const std::size_t here = name.find(layer), there = published.find(layer);
  if (here == std::string::npos || there == std::string::npos) return "";
  return name.substr(0, here + layer.size()) + published.substr(there + layer.size());
}

std::string without_layer(const std::string& name) {
  const std::size_t at = name.find(layer);
  return name.substr(0, at) + name.substr(at + layer.size());
}

/// A glob for the names of a pattern.
std::string glob_of(const std::string& pattern) {
  std::string glob;
  bool inside = false;
  for (const char c : pattern) {
    if (c == '{') glob += '*';
    inside = (inside || c == '{') && c != '}';
    if (!inside && c != '}') glob += c;
  }
  return glob;
}

class Adder {
 public:
  explicit Adder(Family& family) : family_(family) {}

  void run() {
    const std::vector<Rule> rules = family_.megatron;
    for (const Rule& rule : rules) {
      if (!rule.whole_is_stored) continue;
      for (const RulePiece& piece : rule.pieces) add(rules, rule, piece);
    }
  }

 private:
  void add(const std::vector<Rule>& rules, const Rule& rule, const RulePiece& piece) {
    const std::string& published = piece.name.text();
    const bool is_whole = rule.pieces.size() == 1 && piece.parts.size() < 2;
    const std::string half = half_of(rule.whole.text(), published);
    if (!has_all_variables(published, rule.whole)) return;
    add_rule(rule, is_whole, published, published, "");
    if (half.empty()) return;
    add_rule(rule, is_whole, half, published, "");
    const auto stacked =
        std::find_if(rules.begin(), rules.end(), [&](const Rule& other) { return other.whole.text() == without_layer(rule.whole.text()); });
    if (stacked != rules.end()) add_rule(*stacked, is_whole, without_layer(half), published, "l");
  }

  static bool has_all_variables(const std::string& published, const NamePattern& whole) {
    return std::all_of(whole.variables().begin(), whole.variables().end(),
                       [&](const std::string& variable) { return published.find('{' + variable) != std::string::npos; });
  }

  /// `name` is what the rule's whole is (`is_whole`), or one of its pieces, to be taken as it is.
  void add_rule(const Rule& rule, bool is_whole, const std::string& name, const std::string& published, const std::string& stacked) {
    if (name.find('*') != std::string::npos) return;
    Rule half;
    if (is_whole) {
      half = rule;
    } else {
      half.pieces.push_back({NamePattern::parse(published, label), {}, {}});
      half.stacked = stacked;
      half.when = rule.when;
    }
    half.whole = NamePattern::parse(name, label);
    for (const auto& [glob, how] : family_.placements) {
      if (!glob_matches(glob, rule.whole.text())) continue;
      std::pair<std::string, std::string> placement{glob_of(name), how};
      family_.placements.insert(family_.placements.begin(), std::move(placement));
      break;
    }
    family_.megatron.push_back(std::move(half));
  }

  Family& family_;
};

}  // namespace

void add_half_translated(Family& family) {
  Adder(family).run();
}

}  // namespace unshard
