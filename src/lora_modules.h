// Where the modules of an adapter are among the tensors of the base model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lora_bases.h"
#include "lora_parameters.h"
#include "mapping_steps.h"

namespace unshard {

/// What was found for one adapter.
class ModuleNames {
 public:
  explicit ModuleNames(const MapContext& context) : context_(context) {}

  /// The name with the prefix that the base has for it.
  [[nodiscard]] std::string renamed(const std::string& name) const;
  [[nodiscard]] std::optional<Parameter> parameter_of(const LoraPair& pair) const;
  /// Whether the tensor is stored as [in, out] where the pair makes `shape` [out, in]. Throws Error(unsupported) naming it when nothing
  /// tells.
  [[nodiscard]] bool is_transposed(const std::string& name, TensorId base, const Shape& shape) const;

  std::vector<std::pair<std::string, std::string>> prefixes;  ///< from, to; the longest first
  std::unordered_map<TensorId, Parameter> parameters;         ///< by A of the pair
  /// What the pairs of other shapes, or the adapter's config, say of square tensors.
  enum class Squares : std::uint8_t { straight, transposed, unknown } squares = Squares::straight;

 private:
  const MapContext& context_;
};

/// Throws Error(bad_input) when not all modules are found: how many were, and the names of the others.
[[nodiscard]] ModuleNames find_modules(const MapContext& context, const AdapterUse& use, const BaseTensors& bases);

}  // namespace unshard
