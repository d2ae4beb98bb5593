// Which bare parameters the pairs of a module stand for. PEFT (src/peft/tuners/tuners_utils.py, _inject_parameters; lora/layer.py,
// ParamWrapper) wraps the parameters of a module one around the other in the order in which the module registers them, and the names of the
// pairs say only how deep each lies. So the innermost is that of the first parameter: of experts gate_up_proj, or up_proj where there is no
// gate, and down_proj comes behind. A stack is [experts, out, in], or of all parameters of the module [experts, in, out].
#include "lora_parameters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>

#include "names.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::size_t most_pairs = 4, most_candidates = 8;

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

/// Where modules register a parameter of experts.
enum class Place : std::uint8_t { first, last, unknown };
Place place_of(std::string_view last) {
  if (last.starts_with("gate") || last.starts_with("up")) return Place::first;
  return last.starts_with("down") ? Place::last : Place::unknown;
}

void sort_as_registered(std::vector<std::string>& lasts) {
  std::sort(lasts.begin(), lasts.end(), [](const auto& a, const auto& b) { return std::pair(place_of(a), a) < std::pair(place_of(b), b); });
}

/// Of names in that order.
bool is_order_known(const std::vector<std::string>& lasts) {
  return lasts.size() == 1 || (lasts.size() == 2 && place_of(lasts[0]) == Place::first && place_of(lasts[1]) == Place::last);
}

class Fitter {
 public:
  Fitter(const MapContext& context, const AdapterConfig& config, const BaseTensors& bases, const PairsOfModule& of)
      : context_(context), config_(config), bases_(bases), of_(of) {}

  std::optional<ParameterFit> run() {
    if (of_.pairs.empty() || of_.pairs.size() > most_pairs) return std::nullopt;
    for (const std::string& candidate : candidates()) add(candidate);
    if (fits_.size() < of_.pairs.size() || fits_.size() > most_candidates) return std::nullopt;
    std::vector<std::size_t> usual(fits_.size());
    std::iota(usual.begin(), usual.end(), 0);
    if (usual.size() == of_.pairs.size() && order_is_known()) {
      if (auto parameters = assigned(usual, false)) {
        const bool either_way = !orientation_is_known() && is_other(assigned(usual, true), *parameters);
        return ParameterFit{std::move(*parameters), !either_way};
      }
      if (const auto turned = assigned(usual, true)) keep(*turned);  // before any other order
    }
    try_all(false);
    if (ways_.empty() || !orientation_is_known()) try_all(true);
    if (ways_.empty()) return std::nullopt;
    return ParameterFit{ways_.front(), ways_.size() == 1};
  }

 private:
  /// How one parameter fits each pair, from the innermost: as PEFT would have it, and the other way round.
  struct Fits {
    std::string last;
    std::vector<std::array<std::optional<Parameter>, 2>> of_pairs;
  };

  void add(const std::string& last) {
    Fits fits{last, {}};
    bool any = false;
    for (auto pair = of_.pairs.rbegin(); pair != of_.pairs.rend(); ++pair) {
      const bool usual = prefers_transposed(last);
      fits.of_pairs.push_back({fit(last, **pair, usual), fit(last, **pair, !usual)});
      any = any || fits.of_pairs.back()[0] || fits.of_pairs.back()[1];
    }
    if (any) fits_.push_back(std::move(fits));
  }

  /// Last elements, in the order of registration as far as that is known. Without a config all that the base has, and what the rules of
  /// families make of stacks of experts.
  [[nodiscard]] std::vector<std::string> candidates() const {
    std::vector<std::string> lasts = listed_parameters(config_, of_.module);
    if (config_.target_parameters.empty()) {
      lasts = {"gate_up_proj", "up_proj", "down_proj"};
      const std::string prefix = of_.name + ".";
      for (auto base = bases_.all().lower_bound(prefix); base != bases_.all().end() && base->first.starts_with(prefix); ++base) {
        const std::string last = base->first.substr(prefix.size());
        if (last.find('.') == std::string::npos && last != "weight" && !last.ends_with("bias")) lasts.push_back(last);
      }
    }
    sort_as_registered(lasts);
    lasts.erase(std::unique(lasts.begin(), lasts.end()), lasts.end());
    return lasts;
  }

  [[nodiscard]] bool order_is_known() const {
    std::vector<std::string> lasts;
    for (const Fits& one : fits_) lasts.push_back(one.last);
    return is_order_known(lasts);
  }

  /// PEFT took [in, out] always up to 0.18.1, since then only in modules that say so (commit 5356277).
  [[nodiscard]] bool prefers_transposed(const std::string& last) const {
    if (any_glob_matches(context_.family.transposed, of_.name + "." + last)) return true;
    return !config_.peft_version.empty() && version_of(config_.peft_version) < std::array<int, 3>{0, 18, 2};
  }

  [[nodiscard]] bool orientation_is_known() const {
    return !config_.peft_version.empty() || std::any_of(fits_.begin(), fits_.end(), [&](const Fits& one) {
      return any_glob_matches(context_.family.transposed, of_.name + "." + one.last);
    });
  }

  [[nodiscard]] std::optional<Parameter> fit(const std::string& last, const LoraPair& pair, bool transposed) const {
    const std::uint64_t in = context_.table[pair.a].shape[1], out = context_.table[pair.b].shape[0];
    Parameter parameter{of_.name + "." + last, of_.module + "." + last, 1, true, transposed};
    const auto base = bases_.find(parameter.name);
    if (!base) {
      if (!is_made_by_rules(parameter.name)) return std::nullopt;
      const auto rank = rank_of(config_, parameter.peft_name);
      if (!rank || pair.rank % *rank != 0) return std::nullopt;
      parameter.experts = pair.rank / *rank;
      const Shape shape = transposed ? Shape{parameter.experts, in, out} : Shape{parameter.experts, out, in};
      if (names_by_rules(context_, parameter.name, shape, bases_).empty()) return std::nullopt;
      return parameter;
    }
    const Shape& shape = context_.table[*base].shape;
    if (shape.size() == 2) {  // as a linear layer, but where it can't be
      parameter.is_stack = false;
      parameter.transposed = transposed && !(shape == Shape{out, in});
      return shape == (parameter.transposed ? Shape{in, out} : Shape{out, in}) ? std::optional(parameter) : std::nullopt;
    }
    if (shape.size() != 3 || shape[0] == 0 || pair.rank % shape[0] != 0) return std::nullopt;
    parameter.experts = shape[0];
    return shape == (transposed ? Shape{shape[0], in, out} : Shape{shape[0], out, in}) ? std::optional(parameter) : std::nullopt;
  }

  [[nodiscard]] bool is_made_by_rules(const std::string& name) const {
    const auto& rules = context_.family.rules;
    return std::any_of(rules.begin(), rules.end(), [&](const Rule& rule) { return rule.whole_is_stored && rule.whole.match(name); });
  }

  /// The parameters in the order of the pairs, when the innermost pair is that of the first of `chosen`, and so on outwards.
  [[nodiscard]] std::optional<std::vector<Parameter>> assigned(const std::vector<std::size_t>& chosen, bool turned) const {
    std::vector<Parameter> parameters(of_.pairs.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& fit = fits_[chosen[i]].of_pairs[i][turned ? 1 : 0];
      if (!fit) return std::nullopt;
      parameters[parameters.size() - 1 - i] = *fit;
    }
    return parameters;
  }

  /// Every choice of parameters for the pairs.
  void try_all(bool turned) {
    std::vector<std::size_t> chosen;
    try_from(chosen, turned);
  }

  void try_from(std::vector<std::size_t>& chosen, bool turned) {
    if (ways_.size() > 1) return;  // uncertain already
    const std::size_t depth = chosen.size();
    if (depth == of_.pairs.size()) return keep(*assigned(chosen, turned));
    for (std::size_t i = 0; i < fits_.size(); ++i) {
      if (!fits_[i].of_pairs[depth][turned ? 1 : 0] || std::find(chosen.begin(), chosen.end(), i) != chosen.end()) continue;
      chosen.push_back(i);
      try_from(chosen, turned);
      chosen.pop_back();
    }
  }

  void keep(const std::vector<Parameter>& parameters) {
    if (std::all_of(ways_.begin(), ways_.end(), [&](const auto& way) { return is_other(way, parameters); })) ways_.push_back(parameters);
  }

  static bool is_other(const std::optional<std::vector<Parameter>>& way, const std::vector<Parameter>& than) {
    return way && !std::equal(way->begin(), way->end(), than.begin(),
                              [](const auto& a, const auto& b) { return a.name == b.name && a.transposed == b.transposed; });
  }

  const MapContext& context_;
  const AdapterConfig& config_;
  const BaseTensors& bases_;
  const PairsOfModule& of_;
  std::vector<Fits> fits_;  ///< of each parameter that fits a pair
  std::vector<std::vector<Parameter>> ways_;
};

}  // namespace

std::map<std::string, std::vector<const LoraPair*>> pairs_by_module(const Adapter& adapter) {
  std::map<std::string, std::vector<const LoraPair*>> pairs;
  for (const LoraPair& pair : adapter.pairs) pairs[pair.module].push_back(&pair);
  return pairs;
}

std::vector<std::string> listed_parameters(const AdapterConfig& config, const std::string& module) {
  std::set<std::string> lasts;
  for (const std::string& listed : config.target_parameters) {
    const std::size_t dot = listed.rfind('.');
    const std::string of = dot == std::string::npos ? "" : listed.substr(0, dot);
    // The name of the module may have lost its beginning (an adapter of an inner model).
    if (of.empty() || ends_with_element(module, of) || ends_with_element(of, module)) lasts.insert(listed.substr(dot + 1));
  }
  return {lasts.begin(), lasts.end()};
}

std::string adapted_name(const AdapterConfig& config, const std::string& module) {
  const std::vector<std::string> listed = listed_parameters(config, module);
  return std::find(listed.begin(), listed.end(), "weight") == listed.end() ? module : module + ".weight";
}

std::optional<ParameterFit> fit_parameters(const MapContext& context, const AdapterConfig& config, const BaseTensors& bases,
                                           const PairsOfModule& of) {
  return Fitter(context, config, bases, of).run();
}

std::optional<std::vector<Parameter>> parameters_by_config(const AdapterConfig& config, const PairsOfModule& of) {
  std::vector<std::string> lasts = listed_parameters(config, of.module);
  sort_as_registered(lasts);
  if (lasts.size() != of.pairs.size() || !is_order_known(lasts)) return std::nullopt;
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < lasts.size(); ++i) {
    const LoraPair& pair = *of.pairs[of.pairs.size() - 1 - i];
    Parameter parameter{of.name + "." + lasts[i], of.module + "." + lasts[i], 1, true, false};
    const auto rank = rank_of(config, parameter.peft_name);
    if (!rank || pair.rank % *rank != 0) return std::nullopt;
    parameter.experts = pair.rank / *rank;
    parameters.insert(parameters.begin(), std::move(parameter));
  }
  return parameters;
}

void require_certain(const ParameterFit& fit, const AdapterConfig& config, const PairsOfModule& of) {
  if (fit.is_certain) return;
  std::vector<std::string> names;
  for (const Parameter& parameter : fit.parameters) names.push_back(parameter.peft_name);
  throw Error(ErrorCode::unsupported,
              printable(config.path, 4096) + ": the LoRA pairs of " + printable(of.module) +
                  " fit its parameters in more than one way, one being " + name_list(names) +
                  "; nothing says which is right: put the adapter_config.json that PEFT has written, with target_parameters and "
                  "peft_version, beside the adapter or the checkpoint");
}

std::set<double> alphas_of(const AdapterUse& use) {
  std::set<double> alphas;
  for (const auto& [module, pairs] : pairs_by_module(use.adapter)) {
    std::vector<std::string> names;
    if (pairs.size() > 1)  // those of parameters
      for (const std::string& last : listed_parameters(use.config, module)) names.push_back(module + "." + last);
    if (names.empty()) names.push_back(adapted_name(use.config, module));
    for (const std::string& name : names)
      if (const auto alpha = alpha_of(use.config, name)) alphas.insert(*alpha);
  }
  return alphas;
}

}  // namespace unshard
