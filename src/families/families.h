// What is known of the models of one type: which tensors a published folder has, with shapes over config.json, and how the names and
// layouts of a checkpoint become these. One JSON file per family in this folder, embedded in the binary; docs/families.md describes the
// format.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "families/rules.h"
#include "unshard/mapping.h"

namespace unshard {

struct TensorSpec {
  NamePattern name;
  std::optional<std::vector<Expression>> shape;  ///< none: any
  bool optional = false;
  bool head = false;               ///< the output layer of a language model: absent when tied, or when the model has another head
  std::optional<Expression> when;  ///< the tensor exists where this is not 0
};

/// A buffer that transformers makes itself.
struct LeftOut {
  std::string pattern;                ///< glob
  std::optional<std::uint64_t> rank;  ///< only with so many dimensions
};

/// Another name of a tensor that the rules know as `to`.
struct OtherName {
  NamePattern from, to;
  std::vector<std::pair<std::string, Expression>> computed;  ///< the computed variables of `to`
};

using Expressions = std::map<std::string, Expression, std::less<>>;

struct Family {
  std::string name;  ///< "" when the model type has none
  std::vector<std::string> model_types;
  Expressions sizes;   ///< names for expressions
  Expressions ranges;  ///< how far a variable of a tensor's name runs
  std::vector<TensorSpec> tensors;
  std::vector<Rule> rules;
  std::size_t custom_rules = 0;                                 ///< the first so many of `rules`, and of `megatron`, are the user's
  std::vector<Rule> megatron;                                   ///< from Megatron's names and layouts to published ones
  std::vector<OtherName> megatron_names;                        ///< other names of Megatron's; each is replaced once, in order
  std::vector<std::pair<std::string, std::string>> placements;  ///< glob on Megatron's names, how tensor-parallel ranks share the tensor
  std::vector<std::string> keep_dtype;                          ///< globs: tensors that stay in their stored type
  std::vector<std::string> transposed;  ///< globs: stored tensors that are [in, out], where a linear layer has [out, in]
  std::vector<LeftOut> left_out;
  std::vector<std::string> known;                         ///< globs: published tensors that need not be in `tensors`
  std::vector<std::pair<std::string, std::string>> ties;  ///< head, embedding (published names)
  std::optional<bool> tied_by_default;
  std::string base_prefix;          ///< in front of every tensor but the head's; absent when the base model was saved alone
  std::string no_megatron;          ///< why there are no rules for Megatron's names, where that is known
  bool zero_centred_norms = false;  ///< published as w where the model computes with 1 + w
  bool interleaved_rotary = false;  ///< the published model rotates neighbours instead of halves
  bool sorted = false;              ///< transformers sorts the tensors of a model that it converts before it saves them
};

/// Local. The family of `model_type`, or the one that holds for all models. `config` names the language model inside a multimodal one.
[[nodiscard]] Family family_of(const std::string& model_type, const ModelConfig& config);

/// Local. `name` as the rules call it. Throws Error(bad_input) when config.json lacks a number that this takes.
[[nodiscard]] std::string megatron_name(const Family& family, const Scope& scope, std::string name);

/// Local. Adds the rules of a --custom-mapping text in front. Throws Error(bad_input) naming `path`.
void add_custom_rules(Family& family, const std::string& text, const std::string& path);

/// Local. Whether a --custom-mapping text is the plain form, and if so its pairs. Throws Error(bad_input) naming `path`.
[[nodiscard]] std::optional<std::vector<std::pair<std::string, std::string>>> plain_mapping(const std::string& text,
                                                                                            const std::string& path);

/// config.json as an expression of this family sees it: numbers in the name at hand, the family's sizes, then config.json (true is 1, false
/// is 0).
[[nodiscard]] std::unique_ptr<Names> names_in(const ModelConfig& config, const Family& family, Captures captures);

}  // namespace unshard
