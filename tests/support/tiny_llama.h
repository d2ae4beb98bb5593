// The table of a tiny llama, and what map_tensors makes of such a table.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard::testing_support {

inline constexpr const char* llama_config =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "tie_word_embeddings": false, "vocab_size": 6,
  "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2})";

/// `config` with one more key, which then counts.
inline std::string with(std::string config, const std::string& member) {
  return config.insert(config.size() - 1, ", " + member);
}

/// The same, tied.
inline const std::string tied_config = with(llama_config, R"("tie_word_embeddings": true)");

inline std::vector<TensorRow> llama(DType dtype = DType::bf16) {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", dtype, {6, 4}, 0},
          {layer + "self_attn.q_proj.weight", dtype, {4, 4}, 0},
          {layer + "self_attn.k_proj.weight", dtype, {2, 4}, 0},
          {layer + "self_attn.v_proj.weight", dtype, {2, 4}, 0},
          {layer + "self_attn.o_proj.weight", dtype, {4, 4}, 0},
          {layer + "mlp.gate_proj.weight", dtype, {3, 4}, 0},
          {layer + "mlp.up_proj.weight", dtype, {3, 4}, 0},
          {layer + "mlp.down_proj.weight", dtype, {4, 3}, 0},
          {layer + "input_layernorm.weight", dtype, {4}, 0},
          {layer + "post_attention_layernorm.weight", dtype, {4}, 0},
          {"model.norm.weight", dtype, {4}, 0},
          {"lm_head.weight", dtype, {6, 4}, 0}};
}

inline Mapping map(const std::vector<TensorRow>& table, const std::string& config, const MapOptions& options = {},
                   TieAnswer tie = TieAnswer::not_asked) {
  return map_tensors(table, ModelConfig::parse(config, "hf/config.json"), options, tie);
}

inline std::string error_of(const std::vector<TensorRow>& table, const std::string& config, const MapOptions& options = {},
                            ErrorCode code = ErrorCode::bad_input, TieAnswer tie = TieAnswer::not_asked) {
  try {
    static_cast<void>(map(table, config, options, tie));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline std::vector<std::string> names_of(const Mapping& mapping) {
  std::vector<std::string> names;
  for (const Target& target : mapping.targets.targets) names.push_back(target.name);
  return names;
}

inline const Target& target_of(const Mapping& mapping, const std::string& name) {
  const auto& targets = mapping.targets.targets;
  const auto found = std::find_if(targets.begin(), targets.end(), [&](const Target& target) { return target.name == name; });
  if (found == targets.end()) throw std::logic_error("no target " + name);
  return *found;
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

inline void erase_row(std::vector<TensorRow>& table, const std::string& name) {
  std::erase_if(table, [&](const TensorRow& row) { return row.name == name; });
}

}  // namespace unshard::testing_support
