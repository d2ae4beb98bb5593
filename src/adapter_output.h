// What an adapter folder holds that PEFT and vLLM load: the tensors under PEFT's names, and adapter_config.json.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "unshard/lora.h"
#include "unshard/mapping.h"
#include "unshard/plan.h"
#include "unshard/targets.h"

namespace unshard {

/// An adapter to be written.
struct AdapterOutput {
  std::string folder;           ///< below the target folder; "": the target folder itself
  std::vector<Target> targets;  ///< of adapter_model.safetensors
  std::string config;           ///< adapter_config.json
};

/// What adapter_config.json says besides the modules.
struct AdapterFacts {
  std::uint64_t rank = 0;
  double alpha = 0;
  std::vector<std::pair<std::string, double>> rank_pattern,
      alpha_pattern;  ///< by full module name (a regular expression that matches it alone)
  std::vector<std::string> target_modules, modules_to_save, target_parameters;
  std::string base_model, task_type, peft_version, bias = "none";
  bool rank_stabilised = false, weights_decomposed = false, has_bias = false, inputs_first = false;
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> token_rows;
};

/// Local, pure. The text of adapter_config.json: PEFT's fields, keys sorted, indented by 2.
[[nodiscard]] std::string adapter_config_text(const AdapterFacts& facts);

/// Local, pure. How target_modules says `modules`: by their last elements, where no other module of the base (`all_modules`, if known) has
/// such a name; else by full names.
[[nodiscard]] std::vector<std::string> target_modules(const std::set<std::string>& modules, const std::set<std::string>& all_modules);

class PairSplitter;
struct StoredParameters;

/// Local, pure. The adapter as its tensors are stored, or (`splitter`: Megatron's) with the pairs that the published model has of them.
/// `base_modules`: names of the base model's modules with a matrix, if it is there. `parameters`: what pairs stand for that adapt no
/// module. Throws Error(bad_input) when an alpha is unknown or 0; Error(unsupported) naming a tensor for which PEFT has no place.
[[nodiscard]] AdapterOutput adapter_as_stored(const std::vector<TensorRow>& table, const AdapterUse& use,
                                              const std::set<std::string>& base_modules, const StoredParameters& parameters,
                                              const PairSplitter* splitter = nullptr);

/// Local, pure. The modules with a matrix among the tensors that are not part of an adapter.
[[nodiscard]] std::set<std::string> base_modules_in(const std::vector<TensorRow>& table);

/// Local, pure. The adapters inside a checkpoint, as stored, for folders `folder` (the one that PEFT calls default, or that has no name)
/// and `folder`/<name>. Throws what adapter_as_stored throws, and Error(bad_input) for a name that can't be a folder's. `config` and
/// `options` say what Megatron's names are published as; they are not asked where names are published ones.
[[nodiscard]] std::vector<AdapterOutput> adapters_beside(const std::vector<TensorRow>& table, const ModelConfig& config,
                                                         const MapOptions& options, const std::vector<AdapterUse>& uses,
                                                         const std::string& folder);

/// Local, pure. Appends the files of the adapters, and their targets, to those of a model.
void append_adapters(const std::vector<AdapterOutput>& adapters, Targets& targets, Layout& layout);

}  // namespace unshard
