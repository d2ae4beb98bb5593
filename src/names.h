// What names of tensors share: order, the ends of embeddings and heads, and the parts that PEFT puts into them.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unshard {

/// Whether any of the patterns matches the whole name.
[[nodiscard]] bool any_glob_matches(const std::vector<std::string>& globs, std::string_view name);

[[nodiscard]] std::vector<std::string_view> split_name(std::string_view name);

/// Whether `ending` is the last elements of `name`.
[[nodiscard]] bool ends_with_element(std::string_view name, std::string_view ending);

/// The order in which transformers 5 sorts a state dict that it converts (core_model_loading.py, dot_natural_key): by dotted elements,
/// numbers by value and before words, numbers at the end of a word by value.
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b);

/// How the names of input embeddings end, in published models and in Megatron.
inline constexpr std::array<std::string_view, 4> embedding_endings{"embed_tokens.weight", "wte.weight", "embed_in.weight",
                                                                   "word_embeddings.weight"};

/// Whether `name` is that of an input embedding or of a head, which have a row for each token.
[[nodiscard]] bool is_of_vocabulary(std::string_view name);

/// `name` as the model without adapters calls it: no `base_model.model.` in front (several, where a PeftModel was wrapped again), no
/// `base_layer`, `token_adapter.base_layer` or `original_module` in it.
[[nodiscard]] std::string without_peft(std::string_view name);

/// Whether `name` is a full copy that PEFT trained in place of a module (`modules_to_save.default`).
[[nodiscard]] bool is_saved_module(std::string_view name);

/// The name of one of the two matrices beside a linear layer, in its parts. It views the name that it was made from.
struct LoraMatrix {
  std::string_view module;      ///< "decoder.layers.0.mlp.linear_fc1"
  std::string_view matrix;      ///< "lora_A.default"; Megatron-Bridge: "adapter.linear_in", "adapter.adapter_q.linear_out"
  std::string_view rest;        ///< "weight", or "weight3" of an expert
  std::string_view projection;  ///< Megatron-Bridge's canonical form has a pair for each projection of a fused layer: "q"; else ""
  bool is_a = false, of_bridge = false;
};
[[nodiscard]] std::optional<LoraMatrix> lora_matrix(std::string_view name);

/// `name` with each occurrence of a key replaced by its value, from left to right, the longest key first; what was put in is not looked at
/// again.
[[nodiscard]] std::string with_parts_replaced(std::string_view name, const std::vector<std::pair<std::string, std::string>>& parts);

}  // namespace unshard
