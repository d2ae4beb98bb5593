// The tensors of the base model that adapters change, and what the family's rules call them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
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
  /// Names whose last two elements ("q_proj.weight") are those of `name`.
  [[nodiscard]] const std::set<std::string>& ending_like(const std::string& name) const;
  void replace(const std::string& name, TensorId with);
  /// Of a tied model without a stored head: the head's name stands for the embedding.
  void tie(const std::string& head, const std::string& embedding);
  [[nodiscard]] bool is_tied_head(const std::string& name) const { return !tied_head_.empty() && name == tied_head_; }
  [[nodiscard]] const std::string& head() const { return head_; }  ///< of a tied model, stored or not; else ""
  [[nodiscard]] bool is_tied_embedding(const std::string& name) const { return !tied_embedding_.empty() && name == tied_embedding_; }
  [[nodiscard]] bool is_replacement(TensorId id) const { return replacements_.contains(id); }

 private:
  void put(const std::string& name, TensorId id);

  std::map<std::string, TensorId> ids_;
  std::map<std::string, std::set<std::string>> by_ending_;
  std::set<TensorId> replacements_;
  std::string head_, tied_head_, tied_embedding_;  ///< tied_head_: where it is not stored
};

/// The pieces that the family's rules make of a tensor of this name and shape that is not in the base; none unless the base has them all.
[[nodiscard]] std::vector<Made> names_by_rules(const MapContext& context, const std::string& name, const Shape& shape,
                                               const BaseTensors& bases);

/// The base tensor that the family's rules rename `name` to, whatever its shape; none unless the base has it.
[[nodiscard]] std::optional<std::string> renamed_by_rules(const MapContext& context, const std::string& name, const Shape& shape,
                                                          const BaseTensors& bases);

}  // namespace unshard
