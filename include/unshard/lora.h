// LoRA adapters: the pairs of small matrices that PEFT trains beside a base model, and what else it puts into the same file. Found among
// the tensors of a catalog by their names, whatever the format: a PEFT folder, or the shards of a training job.
//
// All functions are Local and pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unshard/catalog.h"

namespace unshard {

/// What adapter_config.json says, or what a training checkpoint says in its place.
struct AdapterConfig {
  std::string path;  ///< for messages
  std::optional<double> rank, alpha;
  bool rank_stabilised = false;     ///< use_rslora: the scale is alpha / sqrt(rank)
  bool weights_decomposed = false;  ///< use_dora
  bool ties_weights = false;        ///< ensure_weight_tying
  bool inputs_first = false;        ///< fan_in_fan_out: weights are [in, out] (Conv1D)
  /// Regular expressions of names of modules, or of bare parameters, in the order of the file: the first that matches counts.
  std::vector<std::pair<std::string, double>> rank_pattern, alpha_pattern;
  std::vector<std::string> target_parameters;  ///< bare parameters: "mlp.experts.gate_up_proj"
  std::vector<std::string> modules_to_save;    ///< modules of which the adapter has a full copy: endings of names
  std::string task_type, base_model, peft_version, bias = "none";
  /// trainable_token_indices: of the module of that name ("" for the input embedding), the rows that the adapter replaces.
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> token_rows;
};

/// Throws Error(bad_input) for what is no such JSON, Error(unsupported) naming the method or field for an adapter whose fold is another
/// formula than LoRA's (LoHa, IA3, activated LoRA …) or whose base is another (PiSSA …).
[[nodiscard]] AdapterConfig parse_adapter_config(std::string_view text, const std::string& path);

/// The arguments of an ms-swift run (args.json), which hold all settings, LoRA's among them: {lora_alpha, lora_rank, use_rslora …}; none
/// when that run trained no LoRA adapter. Throws Error(bad_input) for what is no such JSON.
[[nodiscard]] std::optional<AdapterConfig> parse_swift_args(std::string_view text, const std::string& path);

/// Megatron-Bridge's run_config.yaml: the block `peft:` with dim and alpha; none when there is no such block. Without an alpha when that is
/// not written as a number in a line of its own.
[[nodiscard]] std::optional<AdapterConfig> parse_bridge_config(std::string_view text, const std::string& path);

/// verl's lora_train_meta.json: {r, lora_alpha, task_type}. Throws Error(bad_input) for what is no such JSON.
[[nodiscard]] AdapterConfig parse_training_meta(std::string_view text, const std::string& path);

/// One adapted module: its pair, and what belongs to it.
struct LoraPair {
  std::string module;  ///< as the base model calls it: "model.layers.0.self_attn.q_proj"
  TensorId a = 0, b = 0;
  std::optional<TensorId> bias, magnitude;  ///< lora_B.bias; lora_magnitude_vector
  std::uint64_t rank = 0;                   ///< rows of A: of all experts together where one pair has them all
  bool embedding = false;                   ///< lora_embedding_A and _B
  Shape stack;              ///< of Megatron: the dimensions in front of the matrices ([layers, experts]), which both have or one
  std::string projection;   ///< of Megatron-Bridge: of a pair for one part of a fused layer, "q", "up" …; else ""
  bool of_bridge = false;   ///< Megatron-Bridge's names
  std::uint64_t depth = 0;  ///< how many pairs of this module lie further out (`base_layer.` in the name)
};

/// A tensor that stands in place of one of the base model: modules_to_save, biases, whole embeddings.
struct Replacement {
  std::string name;  ///< of the base tensor: "model.embed_tokens.weight"
  TensorId tensor = 0;
};

struct Adapter {
  std::string name;             ///< "default"; of a folder: "", or the name that training shards give it
  std::vector<LoraPair> pairs;  ///< by module, then depth, in the order of the table
  std::vector<Replacement> replacements;
  std::vector<Replacement> token_rows;  ///< trainable_tokens_delta: the name is the embedding's
};

/// The adapters among the tensors first <= id < end of the table: one for each name that PEFT's in-memory names carry. `only_adapters`:
/// these tensors are an adapter's file, so that plain names are replacements; else they are base weights. `of_megatron`: the names are
/// Megatron's, whose matrices may stand in stacks of layers and experts. Throws Error(bad_input) naming a
/// tensor: half a pair, shapes that don't fit each other, an empty tensor, an adapter's file with something else in it;
/// Error(unsupported): a kind of adapter tensor that is not known, a convolution.
[[nodiscard]] std::vector<Adapter> find_adapters(const std::vector<TensorRow>& table, TensorId first, TensorId end, bool only_adapters,
                                                 bool of_megatron = false);

/// What Megatron's arguments say of an adapter, as facts of a checkpoint.
inline constexpr const char* alpha_fact = "lora_alpha";
inline constexpr const char* rank_stabilised_fact = "lora_rank_stabilised";

/// The scale of a pair whose matrices have this rank (of one expert). `name`: of what it adapts, as the model in training calls it: a
/// module, or a bare parameter of one. Throws Error(bad_input) naming it when alpha is unknown or 0.
[[nodiscard]] double scale_of(const AdapterConfig& config, const std::string& name, std::uint64_t rank);

/// The alpha of what is adapted; none when nothing says it.
[[nodiscard]] std::optional<double> alpha_of(const AdapterConfig& config, const std::string& name);

/// The rank that the config says (of one expert); none when it says none that is a whole number from 1.
[[nodiscard]] std::optional<std::uint64_t> rank_of(const AdapterConfig& config, const std::string& name);

/// An adapter that is folded into the base weights, `weight` times.
struct AdapterUse {
  std::string label;  ///< for messages: the folder, or the adapter's name
  Adapter adapter;
  AdapterConfig config;
  double weight = 1;
};

}  // namespace unshard
