#include "lora_modules.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

std::string last_element(const std::string& name) {
  return name.substr(name.rfind('.') + 1);
}

bool ends_with_element(std::string_view name, std::string_view ending) {
  return name == ending || (name.size() > ending.size() && name.ends_with(ending) && name[name.size() - ending.size() - 1] == '.');
}

/// `0.18.2` as numbers; what can't be read counts as new.
std::array<int, 3> version_of(std::string_view text) {
  std::array<int, 3> version{1 << 20, 0, 0};
  for (int& number : version) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end == text.data() + text.size() || *end != '.') break;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  }
  return version;
}

class Finder {
 public:
  Finder(const MapContext& context, const AdapterUse& use, const BaseTensors& bases)
      : context_(context), use_(use), bases_(bases), names_(context) {}

  ModuleNames run() {
    for (const LoraPair& pair : use_.adapter.pairs) modules_.insert(pair.module);
    for (int i = 0; i < most_prefixes; ++i) {
      const auto lost = std::find_if(modules_.begin(), modules_.end(), [&](const std::string& module) { return !is_there(module); });
      if (lost == modules_.end() || !find_prefix(*lost)) break;
    }
    require_all();
    find_orientation();
    return std::move(names_);
  }

 private:
  static constexpr int most_prefixes = 8;
  // A module, and (bare parameters) its pairs from the outermost.
  using Pairs = std::vector<const LoraPair*>;

  [[nodiscard]] Pairs pairs_of(const std::string& module) const {
    Pairs pairs;
    for (const LoraPair& pair : use_.adapter.pairs)
      if (pair.module == module) pairs.push_back(&pair);
    return pairs;
  }

  bool is_there(const std::string& module) { return is_there(module, names_.renamed(module)); }

  bool is_there(const std::string& module, const std::string& name) {
    if (bases_.find(name + ".weight")) return true;
    const auto cached = found_.find({module, name});
    if (cached != found_.end()) return cached->second;
    return found_[{module, name}] = looks_there(module, name);
  }

  bool looks_there(const std::string& module, const std::string& name) {
    const Pairs pairs = pairs_of(module);
    if (pairs.size() == 1 && pairs.front()->depth == 0 && !pairs.front()->embedding) {
      const Shape shape{context_.table[pairs.front()->b].shape[0], context_.table[pairs.front()->a].shape[1]};
      if (!names_by_rules(context_, name + ".weight", shape, bases_).empty()) return true;
    }
    return find_parameters(name, pairs);
  }

  /// Bare parameters: the pair that lies innermost was made first. Any order that the shapes allow is taken; the usual one first.
  bool find_parameters(const std::string& module, const Pairs& pairs) {
    std::vector<std::string> candidates = parameters_in(module);
    std::sort(candidates.begin(), candidates.end(), made_before);
    if (candidates.size() < pairs.size() || pairs.size() > 4) return false;
    do {
      std::vector<Parameter> parameters;
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        auto parameter = fit(candidates[i], *pairs[pairs.size() - 1 - i]);
        if (!parameter) break;
        parameters.push_back(std::move(*parameter));
      }
      if (parameters.size() < pairs.size()) continue;
      for (std::size_t i = 0; i < pairs.size(); ++i) names_.parameters[pairs[pairs.size() - 1 - i]->a] = parameters[i];
      return true;
    } while (candidates.size() <= 6 && std::next_permutation(candidates.begin(), candidates.end(), made_before));
    return false;
  }

  /// gate_up_proj before down_proj.
  static bool made_before(const std::string& a, const std::string& b) {
    const auto order = [](const std::string& name) { return last_element(name).starts_with("gate") ? 0 : 1; };
    return std::pair(order(a), a) < std::pair(order(b), b);
  }

  /// The names that the config's target_parameters can mean here; without a config, what stacks of experts are called.
  [[nodiscard]] std::vector<std::string> parameters_in(const std::string& module) const {
    std::vector<std::string> listed = use_.config.target_parameters;
    if (listed.empty()) listed = {"gate_up_proj", "down_proj"};
    std::set<std::string> names;
    for (const std::string& one : listed) {
      const std::size_t dot = one.rfind('.');
      if (dot != std::string::npos && !ends_with_element(module, one.substr(0, dot)) &&
          !ends_with_element(one.substr(0, dot), last_element(module)))
        continue;
      names.insert(module + "." + last_element(one));
    }
    return {names.begin(), names.end()};
  }

  [[nodiscard]] std::optional<Parameter> fit(const std::string& name, const LoraPair& pair) const {
    const std::uint64_t in = context_.table[pair.a].shape[1], out = context_.table[pair.b].shape[0];
    Parameter parameter{name, 1, false, false};
    if (const auto base = bases_.find(name)) {
      const Shape& shape = context_.table[*base].shape;
      if (shape.size() != 2 && shape.size() != 3) return std::nullopt;
      parameter.is_stack = shape.size() == 3;
      if (parameter.is_stack) parameter.experts = shape[0];
      if (parameter.experts == 0 || pair.rank % parameter.experts != 0) return std::nullopt;
      return oriented(parameter, {shape[shape.size() - 2], shape[shape.size() - 1]}, in, out);
    }
    if (!use_.config.rank) return std::nullopt;
    const auto rank = static_cast<std::uint64_t>(*use_.config.rank);
    if (rank == 0 || pair.rank % rank != 0) return std::nullopt;
    parameter.experts = pair.rank / rank;
    parameter.is_stack = true;
    for (const bool transposed : {prefers_transposed(name), !prefers_transposed(name)}) {
      parameter.transposed = transposed;
      const Shape shape = transposed ? Shape{parameter.experts, in, out} : Shape{parameter.experts, out, in};
      if (!names_by_rules(context_, name, shape, bases_).empty()) return parameter;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<Parameter> oriented(Parameter parameter, std::array<std::uint64_t, 2> stored, std::uint64_t in,
                                                  std::uint64_t out) const {
    const bool straight = stored[0] == out && stored[1] == in, turned = stored[0] == in && stored[1] == out;
    if (!straight && !turned) return std::nullopt;
    parameter.transposed = straight && turned ? prefers_transposed(parameter.name) : turned;
    return parameter;
  }

  /// Of a square parameter: PEFT took [in, out] always up to 0.18.1, since then only in modules that say so (commit 5356277).
  [[nodiscard]] bool prefers_transposed(const std::string& name) const {
    if (any_glob_matches(context_.family.transposed, name)) return true;
    return !use_.config.peft_version.empty() && version_of(use_.config.peft_version) < std::array<int, 3>{0, 18, 2};
  }

  /// Another prefix with which `module` and every lost module that begins like it is there.
  bool find_prefix(const std::string& module) {
    const std::vector<std::string_view> elements = split_name(module);
    std::string from;
    for (std::size_t cut = 0; cut + 1 < elements.size(); ++cut) {
      if (cut > 0) from += std::string(elements[cut - 1]) + ".";
      const std::string tail = module.substr(from.size());
      std::set<std::string> candidates{""};
      for (const auto& [name, id] : bases_.all()) {
        const std::string_view of_base = std::string_view(name).substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.'));
        if (ends_with_element(of_base, tail)) candidates.insert(std::string(of_base.substr(0, of_base.size() - tail.size())));
      }
      std::vector<std::string> fitting;
      for (const std::string& to : candidates)
        if (from != to && fits_all(from, to)) fitting.push_back(to);
      if (fitting.empty()) continue;
      if (fitting.size() > 1) return false;
      names_.prefixes.emplace_back(from, fitting.front());
      std::stable_sort(names_.prefixes.begin(), names_.prefixes.end(),
                       [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
      return true;
    }
    return false;
  }

  bool fits_all(const std::string& from, const std::string& to) {
    return std::all_of(modules_.begin(), modules_.end(), [&](const std::string& module) {
      return !module.starts_with(from) || is_there(module) || is_there(module, to + module.substr(from.size()));
    });
  }

  void require_all() {
    std::vector<std::string> lost;
    std::size_t pairs = 0;
    for (const LoraPair& pair : use_.adapter.pairs) {
      if (is_there(pair.module)) {
        ++pairs;
      } else if (lost.empty() || lost.back() != pair.module) {
        lost.push_back(pair.module);
      }
    }
    if (lost.empty()) return;
    const std::string of = std::to_string(pairs) + " of " + std::to_string(use_.adapter.pairs.size());
    throw Error(ErrorCode::bad_input, printable(use_.label, 4096) + ": " + of + " LoRA pairs found their modules in the base; it lacks " +
                                          name_list(lost) + "; nearest names there: " + name_list(nearest(lost.front())) +
                                          "; give the base model that the adapter was trained on");
  }

  /// Names of the base that share the longest ending, then the longest beginning, with the module.
  [[nodiscard]] std::vector<std::string> nearest(const std::string& module) const {
    const auto common = [](const std::string& a, const std::string& b) {
      std::size_t begin = 0, end = 0;
      const std::size_t most = std::min(a.size(), b.size());
      while (begin < most && a[begin] == b[begin]) ++begin;
      while (end < most - begin && a[a.size() - 1 - end] == b[b.size() - 1 - end]) ++end;
      return begin + end;
    };
    std::vector<std::pair<std::size_t, std::string>> scored;
    for (const auto& [name, id] : bases_.all()) {
      if (context_.table[id].shape.size() < 2) continue;
      scored.emplace_back(common(name, module + ".weight"), name);
    }
    std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::min<std::size_t>(scored.size(), 3); ++i) names.push_back(scored[i].second);
    return names;
  }

  void find_orientation() {
    bool straight = false, turned = false;
    for (const LoraPair& pair : use_.adapter.pairs) {
      const auto base = bases_.find(names_.renamed(pair.module) + ".weight");
      if (!base || pair.embedding) continue;
      const Shape& stored = context_.table[*base].shape;
      const std::uint64_t out = context_.table[pair.b].shape[0], in = context_.table[pair.a].shape[1];
      if (stored.size() != 2 || in == out) continue;
      straight = straight || stored == Shape{out, in};
      turned = turned || stored == Shape{in, out};
    }
    names_.all_transposed = turned && !straight;
  }

  const MapContext& context_;
  const AdapterUse& use_;
  const BaseTensors& bases_;
  ModuleNames names_;
  std::set<std::string> modules_;
  std::map<std::pair<std::string, std::string>, bool> found_;
};

}  // namespace

BaseTensors::BaseTensors(const MapContext& context, const std::set<TensorId>& parts) {
  for (TensorId id = 0; id < context.table.size(); ++id) {
    const TensorRow& row = context.table[id];
    if (parts.contains(id)) continue;
    const std::string clean = without_wrappers(row.name);
    const std::string name = row.origin == 0 ? without_peft(clean) : clean;
    const auto [place, is_new] = ids_.emplace(name, id);
    if (!is_new && context.table[place->second].origin != 0 && row.origin == 0) place->second = id;
  }
}

std::optional<TensorId> BaseTensors::find(const std::string& name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void BaseTensors::tie(const std::string& head, const std::string& embedding) {
  head_ = head;
  tied_embedding_ = embedding;
  const auto stored = find(embedding);
  if (find(head) || !stored) return;
  tied_head_ = head;
  ids_.emplace(head, *stored);
}

void BaseTensors::replace(const std::string& name, TensorId with) {
  ids_[name] = with;
  if (name == tied_head_) tied_head_.clear();
  replacements_.insert(with);
}

std::string ModuleNames::renamed(const std::string& name) const {
  for (const auto& [from, to] : prefixes)
    if (name.starts_with(from)) return to + name.substr(from.size());
  return name;
}

std::optional<Parameter> ModuleNames::parameter_of(const LoraPair& pair) const {
  const auto found = parameters.find(pair.a);
  return found == parameters.end() ? std::nullopt : std::optional(found->second);
}

bool ModuleNames::is_transposed(const std::string& name, TensorId base, const Shape& shape) const {
  const Shape& stored = context_.table[base].shape;
  if (stored.size() != 2 || !(stored == Shape{shape[1], shape[0]})) return false;
  return shape[0] != shape[1] || all_transposed || any_glob_matches(context_.family.transposed, name);
}

ModuleNames find_modules(const MapContext& context, const AdapterUse& use, const BaseTensors& bases) {
  return Finder(context, use, bases).run();
}

std::vector<Made> names_by_rules(const MapContext& context, const std::string& name, const Shape& shape, const BaseTensors& bases) {
  const Scope scope = [&](const Captures& captures) { return context.names(captures); };
  for (const Rule& rule : context.family.rules) {
    if (!rule.whole_is_stored) continue;
    std::optional<std::vector<Made>> pieces;
    try {
      pieces = split_whole(rule, name, shape, scope);
    } catch (const Error&) {  // the shape is another: then it is not this tensor
      continue;
    }
    if (!pieces || pieces->empty()) continue;
    const bool all_there = std::all_of(pieces->begin(), pieces->end(), [&](const Made& piece) {
      const auto base = bases.find(piece.name);
      return base && context.table[*base].shape == piece.shape;
    });
    if (all_there) return std::move(*pieces);
  }
  return {};
}

}  // namespace unshard
