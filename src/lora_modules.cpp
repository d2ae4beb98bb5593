#include "lora_modules.h"

#include <algorithm>
#include <utility>

#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class Finder {
 public:
  Finder(const MapContext& context, const AdapterUse& use, const BaseTensors& bases)
      : context_(context), use_(use), bases_(bases), names_(context), pairs_(pairs_by_module(use.adapter)) {}

  ModuleNames run() {
    for (const auto& [module, pairs] : pairs_) modules_.insert(module);
    for (int i = 0; i < most_prefixes; ++i) {
      const auto lost = std::find_if(modules_.begin(), modules_.end(), [&](const std::string& module) { return !is_there(module); });
      if (lost == modules_.end() || !find_prefix(*lost)) break;
    }
    require_all();
    for (const std::string& module : modules_) settle_parameters(module);
    find_orientation();
    return std::move(names_);
  }

 private:
  static constexpr int most_prefixes = 8;

  bool is_there(const std::string& module) { return is_there(module, names_.renamed(module)); }

  bool is_there(const std::string& module, const std::string& name) {
    const auto cached = found_.find({module, name});
    if (cached != found_.end()) return cached->second;
    const PairsOfModule of{module, name, pairs_.at(module)};
    return found_[{module, name}] = has_weight(of) || fit_parameters(context_, use_.config, bases_, of);
  }

  /// Whether the pairs adapt the module's weight; a 3-D one that target_parameters lists is a stack of experts.
  [[nodiscard]] bool has_weight(const PairsOfModule& of) const {
    if (const auto base = bases_.find(of.name + ".weight"))
      return context_.table[*base].shape.size() != 3 || adapted_name(use_.config, of.module) == of.module;
    if (of.pairs.size() != 1 || of.pairs.front()->depth != 0) return false;
    Shape shape{context_.table[of.pairs.front()->b].shape[0], context_.table[of.pairs.front()->a].shape[1]};
    if (of.pairs.front()->embedding) std::swap(shape[0], shape[1]);
    return !names_by_rules(context_, of.name + ".weight", shape, bases_).empty();
  }

  void settle_parameters(const std::string& module) {
    const PairsOfModule of{module, names_.renamed(module), pairs_.at(module)};
    if (has_weight(of)) return;
    const auto fit = fit_parameters(context_, use_.config, bases_, of);
    if (!fit) return;
    require_certain(*fit, use_.config, of);
    for (std::size_t i = 0; i < of.pairs.size(); ++i) names_.parameters[of.pairs[i]->a] = fit->parameters[i];
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
    turned = turned || use_.config.inputs_first;
    if (turned) names_.squares = straight ? ModuleNames::Squares::unknown : ModuleNames::Squares::transposed;
  }

  const MapContext& context_;
  const AdapterUse& use_;
  const BaseTensors& bases_;
  ModuleNames names_;
  const std::map<std::string, std::vector<const LoraPair*>> pairs_;
  std::set<std::string> modules_;
  std::map<std::pair<std::string, std::string>, bool> found_;
};

}  // namespace

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
  if (shape[0] != shape[1] || any_glob_matches(context_.family.transposed, name)) return true;
  // Of a family that is known, PEFT's flag says nothing: it is left true by hand and by old versions, and PEFT ignores it for linear
  // layers.
  const bool is_known = !context_.family.transposed.empty() || !context_.family.tensors.empty();
  if (is_known || squares == Squares::straight) return false;
  if (squares == Squares::transposed) return true;
  throw Error(ErrorCode::unsupported, printable(name) +
                                          ": the adapter changes weights that are [out, in] and others that are [in, out], and " +
                                          "nothing tells which this one of shape " + to_string(stored) + " is; fold the adapter with PEFT");
}

ModuleNames find_modules(const MapContext& context, const AdapterUse& use, const BaseTensors& bases) {
  return Finder(context, use, bases).run();
}

}  // namespace unshard
