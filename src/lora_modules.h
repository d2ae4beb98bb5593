// Where the modules of an adapter are among the tensors of the base model.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "families/rules.h"
#include "mapping_steps.h"

namespace unshard {

/// The tensors of the base model, by clean name.
class BaseTensors {
 public:
  /// All of the table but `parts`, those that fill only where there is no other.
  BaseTensors(const MapContext& context, const std::set<TensorId>& parts);
  [[nodiscard]] std::optional<TensorId> find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, TensorId>& all() const { return ids_; }
  void replace(const std::string& name, TensorId with);
  /// Of a tied model without a stored head: the head's name stands for the embedding.
  void tie(const std::string& head, const std::string& embedding);
  [[nodiscard]] bool is_tied_head(const std::string& name) const { return !tied_head_.empty() && name == tied_head_; }
  [[nodiscard]] const std::string& head() const { return head_; }  ///< of a tied model, stored or not; else ""
  [[nodiscard]] bool is_tied_embedding(const std::string& name) const { return !tied_embedding_.empty() && name == tied_embedding_; }
  [[nodiscard]] bool is_replacement(TensorId id) const { return replacements_.contains(id); }

 private:
  std::map<std::string, TensorId> ids_;
  std::set<TensorId> replacements_;
  std::string head_, tied_head_, tied_embedding_;  ///< tied_head_: where it is not stored
};

/// A bare parameter that a pair adapts, as the base or its family's rules name it.
struct Parameter {
  std::string name;
  std::uint64_t experts = 1;
  bool is_stack = false;    ///< [experts, d1, d2]; else a matrix
  bool transposed = false;  ///< [.., in, out]
};

/// What was found for one adapter.
class ModuleNames {
 public:
  explicit ModuleNames(const MapContext& context) : context_(context) {}

  /// The name with the prefix that the base has for it.
  [[nodiscard]] std::string renamed(const std::string& name) const;
  [[nodiscard]] std::optional<Parameter> parameter_of(const LoraPair& pair) const;
  /// Whether the tensor is stored as [in, out] where the pair makes `shape` [out, in].
  [[nodiscard]] bool is_transposed(const std::string& name, TensorId base, const Shape& shape) const;

  std::vector<std::pair<std::string, std::string>> prefixes;  ///< from, to; the longest first
  std::unordered_map<TensorId, Parameter> parameters;         ///< by A of the pair
  bool all_transposed = false;                                ///< pairs that can only be so say it of square ones

 private:
  const MapContext& context_;
};

/// Throws Error(bad_input) when not all modules are found: how many were, and the names of the others.
[[nodiscard]] ModuleNames find_modules(const MapContext& context, const AdapterUse& use, const BaseTensors& bases);

/// The pieces that the family's rules make of a tensor of this name and shape that is not in the base; none unless the base has them all.
[[nodiscard]] std::vector<Made> names_by_rules(const MapContext& context, const std::string& name, const Shape& shape,
                                               const BaseTensors& bases);

}  // namespace unshard
