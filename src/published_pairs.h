// Megatron's adapters in the terms of the published model: a stored pair adapts a fused layer, of all layers and experts at once where they
// are stacked; what is published are pairs of single projections.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mapping_steps.h"

namespace unshard {

/// A module of the published model that a stored pair adapts, and where its matrices come from.
struct PublishedPair {
  std::string module;  ///< "model.layers.3.self_attn.q_proj"
  std::uint64_t rank = 0, in = 0, out = 0;
  bool transposed = false;  ///< its weight is [in, out]
  Term a;                   ///< fills [rank, in]
  std::vector<Term> b;      ///< fill [out, rank], each some of the rows
};

/// Takes stored pairs apart, in the order of the family's rule for the weight that they adapt: B is that weight's rows with the rank in
/// place of the inputs, so the rule moves its rows as it moves the weight's; A is shared.
class PairSplitter {
 public:
  /// Local. `context` must outlive it.
  explicit PairSplitter(const MapContext& context);
  /// Local. Throws Error(unsupported) naming the module where no pair of matrices follows what the rule does; Error(bad_input) where the
  /// shapes do not fit the base's, or no rule knows the module.
  [[nodiscard]] std::vector<PublishedPair> split(const LoraPair& pair) const;
  /// Local. What a stored tensor of this name is published as, by the rules that take one tensor apart; empty when none is about it. Throws
  /// Error(bad_input) for a shape that does not fit the rule, Error(unsupported) when a rule says that it can't be translated.
  [[nodiscard]] std::vector<Made> pieces(const std::string& stored, const Shape& shape) const;
  /// Local. The modules with a matrix that the base weights are published as, as far as rules tell.
  [[nodiscard]] std::set<std::string> modules() const;

 private:
  /// Whether no rule says that a tensor of this name can't be translated.
  [[nodiscard]] bool can_translate(const std::string& name) const;

  const MapContext& context_;
  std::unordered_map<std::string, TensorId> bases_;  ///< base weights, by the name that rules have for them
};

/// Local, pure. What a folded pair adds to the weight of its module.
[[nodiscard]] std::vector<Addend> addends_of(const PublishedPair& pair, double scale);

}  // namespace unshard
