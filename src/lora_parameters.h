// Pairs that stand for bare parameters (PEFT's target_parameters): most often all experts of a layer in one tensor.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lora_bases.h"
#include "unshard/lora.h"

namespace unshard {

/// A bare parameter that a pair adapts.
struct Parameter {
  std::string name;       ///< as the base or its family's rules name it
  std::string peft_name;  ///< as the model in training calls it, which is what the patterns of adapter_config.json are about
  std::uint64_t experts = 1;
  bool is_stack = false;    ///< [experts, d1, d2]; else a matrix
  bool transposed = false;  ///< [.., in, out]
};

/// A module, as PEFT calls it and as the base does, and its pairs from the outermost.
struct PairsOfModule {
  std::string module, name;
  std::vector<const LoraPair*> pairs;
};
/// Local, pure. The pairs of each module, from the outermost.
[[nodiscard]] std::map<std::string, std::vector<const LoraPair*>> pairs_by_module(const Adapter& adapter);

/// Which parameter each pair adapts, in the order of the pairs.
struct ParameterFit {
  std::vector<Parameter> parameters;
  bool is_certain = true;  ///< the pairs fit in no other way
};

/// Local, pure. The last elements of target_parameters that a module of this name can have.
[[nodiscard]] std::vector<std::string> listed_parameters(const AdapterConfig& config, const std::string& module);

/// Local, pure. What patterns are about where the pair adapts the module's weight: the weight where target_parameters lists it, else the
/// module.
[[nodiscard]] std::string adapted_name(const AdapterConfig& config, const std::string& module);

/// Local, pure. None when the base has no parameters that the pairs fit.
[[nodiscard]] std::optional<ParameterFit> fit_parameters(const MapContext& context, const AdapterConfig& config, const BaseTensors& bases,
                                                         const PairsOfModule& of);

/// Local, pure. What the config alone says of a module that is not in the base: as many parameters as pairs, with ranks that divide those
/// of the pairs; else none.
[[nodiscard]] std::optional<std::vector<Parameter>> parameters_by_config(const AdapterConfig& config, const PairsOfModule& of);

/// Local, pure. Throws Error(unsupported) naming the module and one of the ways when there are several.
void require_certain(const ParameterFit& fit, const AdapterConfig& config, const PairsOfModule& of);

/// Local, pure. The alphas of all pairs, as far as the config tells; which parameters pairs stand for need not be known.
[[nodiscard]] std::set<double> alphas_of(const AdapterUse& use);

}  // namespace unshard
