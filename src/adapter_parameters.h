// Which pairs inside a checkpoint stand for bare parameters (PEFT's target_parameters): what writing them as an adapter has to know.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "lora_parameters.h"
#include "unshard/catalog.h"
#include "unshard/mapping.h"

namespace unshard {

/// Of an adapter: the bare parameters that pairs stand for, by A of the pair, and how target_parameters says them.
struct StoredParameters {
  std::map<TensorId, Parameter> of_pairs;
  std::vector<std::string> targets;
};

/// Local, pure. `modules`: those of the base that have a matrix. Throws Error(unsupported) naming the module where nothing says which
/// parameters its pairs stand for.
[[nodiscard]] StoredParameters stored_parameters(const std::vector<TensorRow>& table, const ModelConfig& config, const MapOptions& options,
                                                 const AdapterUse& use, const std::set<std::string>& modules);

}  // namespace unshard
