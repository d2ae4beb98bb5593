#include "save_order.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <optional>
#include <string_view>

#include "names.h"

namespace unshard {
namespace {

/// The modules of a family as a tree, in the order in which they were made: state_dict() goes through them depth first. `{l}` is one node
/// for all numbers.
class ModuleTree {
 public:
  /// Where a name stands among its siblings, from the root down: place, and the number of a numbered module.
  using Place = std::vector<std::pair<std::size_t, std::uint64_t>>;

  explicit ModuleTree(const Family& family) : nodes_(1) {
    for (const TensorSpec& spec : family.tensors) {
      Node* node = &nodes_.front();
      for (const std::string_view element : split_name(spec.name.text())) node = child(*node, is_variable(element) ? "{}" : element);
    }
  }

  [[nodiscard]] Place place_of(std::string_view name) const {
    Place place;
    const Node* node = &nodes_.front();
    for (const std::string_view element : split_name(name)) {
      const auto number = number_in(element);
      const auto found = node->children.find(number && node->children.contains("{}") ? std::string_view("{}") : element);
      if (found == node->children.end()) {
        place.emplace_back(node->children.size(), 0);
        break;
      }
      place.emplace_back(found->second.first, number.value_or(0));
      node = found->second.second;
    }
    return place;
  }

 private:
  struct Node {
    std::map<std::string, std::pair<std::size_t, Node*>, std::less<>> children;  ///< by element: place, node
  };

  Node* child(Node& node, std::string_view element) {
    const auto [place, is_new] = node.children.try_emplace(std::string(element), node.children.size(), nullptr);
    if (is_new) place->second.second = &nodes_.emplace_back();
    return place->second.second;
  }
  static bool is_variable(std::string_view element) { return element.starts_with('{') && element.ends_with('}'); }
  static std::optional<std::uint64_t> number_in(std::string_view element) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(element.data(), element.data() + element.size(), value);
    if (error != std::errc{} || end != element.data() + element.size()) return std::nullopt;
    return value;
  }

  std::deque<Node> nodes_;  ///< the first is the root
};

/// What a module of transformers 5 calls the tensor: the whole that the family's rules would take it from, and its place in that.
struct ModuleName {
  std::string name;
  std::size_t piece = 0;
  bool unstacked = false;  ///< one of several of this piece
};

ModuleName module_name(const Family& family, const std::string& name) {
  for (const Rule& rule : family.rules) {
    if (rule.only_for_like || !rule.whole_is_stored) continue;
    const auto whole = whole_of(rule, name);
    if (!whole) continue;
    const auto piece = std::find_if(rule.pieces.begin(), rule.pieces.end(), [&](const RulePiece& p) { return p.name.match(name).has_value(); });
    return {*whole, static_cast<std::size_t>(piece - rule.pieces.begin()), piece != rule.pieces.end() && !piece->named.empty()};
  }
  return {name, 0, false};
}

/// Stable, by keys that are made once.
template <class Key, class Less>
void sort_by_key(std::vector<NamedTensor>& tensors, Key key_of, Less less) {
  std::vector<std::pair<decltype(key_of(tensors.front())), NamedTensor>> keyed;
  keyed.reserve(tensors.size());
  for (NamedTensor& tensor : tensors) {
    auto key = key_of(tensor);
    keyed.emplace_back(std::move(key), std::move(tensor));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) { return less(a, b); });
  for (std::size_t i = 0; i < keyed.size(); ++i) tensors[i] = std::move(keyed[i].second);
}

void sort_converted(const Family& family, std::vector<NamedTensor>& tensors) {
  sort_by_key(
      tensors, [&](const NamedTensor& tensor) { return module_name(family, tensor.name); },
      [](const auto& a, const auto& b) {
        if (a.first.name != b.first.name) return natural_less(a.first.name, b.first.name);
        return a.first.piece != b.first.piece ? a.first.piece < b.first.piece : natural_less(a.second.name, b.second.name);
      });
}

void sort_by_modules(const MapContext& context, std::vector<NamedTensor>& tensors) {
  const Family usual = context.family.tensors.empty() ? family_of("llama", context.config) : Family{};
  const Family& family = context.family.tensors.empty() ? usual : context.family;
  const ModuleTree tree(family);
  const auto begins = [&](const NamedTensor& tensor) { return tensor.name.starts_with(family.base_prefix); };
  // The base model may have been saved alone.
  const std::string prefix = std::none_of(tensors.begin(), tensors.end(), begins) ? family.base_prefix : std::string{};
  sort_by_key(
      tensors, [&](const NamedTensor& tensor) { return tree.place_of(prefix + tensor.name); },
      [](const auto& a, const auto& b) { return a.first < b.first; });
}

}  // namespace

void sort_as_saved(const MapContext& context, std::vector<NamedTensor>& tensors) {
  if (context.family.sorted) {
    sort_converted(context.family, tensors);
  } else if (!context.options.keeps_order) {
    sort_by_modules(context, tensors);
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [&](const NamedTensor& a, const NamedTensor& b) { return context.table[a.id].origin < context.table[b.id].origin; });
}

std::vector<std::uint32_t> blocks_of(const MapContext& context, const std::vector<Target>& targets) {
  if (!context.family.sorted) return {};
  std::map<std::pair<std::string, std::size_t>, std::uint32_t> numbers;
  std::vector<std::uint32_t> blocks;
  blocks.reserve(targets.size());
  for (const Target& target : targets) {
    const ModuleName module = module_name(context.family, target.name);
    blocks.push_back(module.unstacked ? numbers.try_emplace({module.name, module.piece}, static_cast<std::uint32_t>(numbers.size() + 1)).first->second : 0);
  }
  return blocks;
}

}  // namespace unshard
