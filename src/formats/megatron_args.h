// What one file of a Megatron checkpoint says of itself: the training arguments that placement needs, and what it holds. Travels between
// ranks as bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/pickle.h"
#include "unshard/catalog.h"

namespace unshard {

/// Numbers of `args` (megatron/training/arguments.py); those that are None or not there are absent.
struct MegatronArgs {
  std::uint64_t tensor = 1, pipeline = 1, expert = 1;
  std::optional<std::uint64_t> expert_tensor;  ///< else as `tensor`
  std::optional<std::uint64_t> layers, experts, padded_vocabulary;
  std::optional<std::uint64_t> first_stage_layers, last_stage_layers;
  bool embedding_counts = false, loss_counts = false;  ///< as a layer when stages are cut
  std::string layout;                                  ///< pipeline_model_parallel_layout as text; "": none
  bool zero_centred_norms = false;                     ///< stores a norm's weight minus 1
  std::optional<std::uint64_t> lora_alpha;             ///< of the adapters that the run trains (ms-swift); a whole number
  bool rank_stabilised = false;                        ///< their scale is alpha / sqrt(rank)
  std::optional<std::uint64_t> hidden_size, heads;     ///< of the model, as config.json must have them; heads: of queries
  std::optional<std::uint64_t> groups, head_dim;       ///< heads of keys and values; none for latent attention, which has others
  bool rotary_interleaved = false;                     ///< rotates neighbours instead of halves
  std::string unsupported;                             ///< an argument that changes the layout in a way that is not known; "": none
  friend bool operator==(const MegatronArgs&, const MegatronArgs&) = default;
};

/// Adds what the arguments say of the model ("args_layers", "args_heads" …, "zero_centred_norms"), and of adapters by the names of lora.h.
void add_model_facts(const MegatronArgs& args, Facts& facts);

/// One file.
struct MegatronFile {
  std::optional<MegatronArgs> args;
  std::vector<std::uint64_t> chunk_layers;  ///< decoder layers of each model chunk (virtual pipeline stage)
  bool has_embedding = false;
  std::uint64_t routed_experts = 0;  ///< rows of a router; 0: none
  std::uint64_t local_experts = 0;   ///< experts whose number is in a name; 0: none
};

/// Local. The args of the pickled dictionary; none when it has none. Throws Error(bad_input) whose text starts with `label` for impossible
/// numbers.
[[nodiscard]] std::optional<MegatronArgs> read_megatron_args(const pickle::Node& root, const std::string& label);

[[nodiscard]] std::vector<std::byte> encode(const MegatronFile& file);
[[nodiscard]] MegatronFile decode_megatron_file(std::span<const std::byte> bytes);

}  // namespace unshard
