// `args` is an argparse.Namespace: an object whose state is a dictionary. Names from megatron/training/checkpointing.py
// (load_args_from_checkpoint); before checkpoint_version 3.0 the tensor-parallel size was called model_parallel_size.
#include "formats/megatron_args.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "unshard/error.h"
#include "unshard/lora.h"
#include "wire.h"

namespace unshard {
namespace {

using pickle::Kind;
using pickle::Node;

constexpr std::int64_t most_ranks = 1 << 24;  // more than any job has

class Reader {
 public:
  Reader(const Node& state, const std::string& label) : state_(state), label_(label) {}

  /// A whole number; none when absent or None.
  std::optional<std::uint64_t> number(const char* name) const {
    const Node* value = state_.find(name);
    if (value == nullptr || value->kind == Kind::none) return std::nullopt;
    if (value->kind != Kind::integer || value->integer < 0 || value->integer > most_ranks)
      throw Error(ErrorCode::bad_input, label_ + ": args." + name + " is " + pickle::describe(*value) + ", not a sensible number");
    return static_cast<std::uint64_t>(value->integer);
  }
  /// The size of a group of ranks: 1 or more.
  std::optional<std::uint64_t> size(const char* name) const {
    const auto value = number(name);
    if (value && *value == 0) throw Error(ErrorCode::bad_input, label_ + ": args." + name + " is 0");
    return value;
  }
  /// The same for a number that may be written with a fraction of 0; none for any other value.
  std::optional<std::uint64_t> whole(const char* name) const {
    const Node* value = state_.find(name);
    if (value == nullptr) return std::nullopt;
    if (value->kind == Kind::integer && value->integer >= 0 && value->integer <= most_ranks)
      return static_cast<std::uint64_t>(value->integer);
    const bool is_whole =
        value->kind == Kind::real && value->real >= 0 && value->real <= most_ranks && value->real == std::floor(value->real);
    return is_whole ? std::optional(static_cast<std::uint64_t>(value->real)) : std::nullopt;
  }
  bool flag(const char* name) const { return known_flag(name).value_or(false); }
  /// None when absent or no boolean.
  std::optional<bool> known_flag(const char* name) const {
    const Node* value = state_.find(name);
    return value != nullptr && value->kind == Kind::boolean ? std::optional(value->integer != 0) : std::nullopt;
  }
  /// Whether something else than nothing stands there.
  bool is_set(const char* name) const {
    const Node* value = state_.find(name);
    return value != nullptr && value->kind != Kind::none && !(value->kind == Kind::boolean && value->integer == 0) &&
           !(value->kind == Kind::integer && value->integer == 0);
  }
  /// "" when absent or no text.
  std::string text(const char* name) const {
    const Node* value = state_.find(name);
    return value != nullptr && value->is_text() ? std::string(value->view()) : "";
  }
  std::string layout() const {
    const Node* value = state_.find("pipeline_model_parallel_layout");
    if (value == nullptr) return "";
    if (value->state() != nullptr) value = value->state()->find("input_data");  // PipelineParallelLayerLayout keeps what it was made from
    if (value == nullptr || value->kind == Kind::none) return "";
    if (value->is_text()) return std::string(value->view());
    return of_lists(*value);
  }

 private:
  /// A list of stages, each a list of layer kinds ("t", "decoder" …): only their first letters differ from the text form.
  std::string of_lists(const Node& stages) const {
    std::string text;
    for (const Node* stage : stages.elements()) {
      if (!text.empty()) text += '|';
      for (const Node* layer : stage->elements()) text += letter_of(*layer);
      if (stage->elements().empty()) text += ',';
    }
    if (text.empty()) unknown_layout();
    return text;
  }
  char letter_of(const Node& layer) const {
    const Node* value = &layer;
    if (!value->is_text() && value->args().size() == 1) value = value->args().front();  // the enumeration LayerType
    constexpr std::array<std::pair<std::string_view, char>, 8> names{
        {{"embedding", 'E'}, {"decoder", 't'}, {"encoder", '?'}, {"mtp", 'm'}, {"loss", 'L'}, {"E", 'E'}, {"t", 't'}, {"m", 'm'}}};
    for (const auto& [name, letter] : names) {
      if (value->is_text() && value->view() == name) return letter;
    }
    if (value->is_text() && value->view() == "L") return 'L';
    unknown_layout();
  }
  [[noreturn]] void unknown_layout() const {
    throw Error(ErrorCode::unsupported, label_ + ": args.pipeline_model_parallel_layout is of a kind that is not known");
  }

  const Node& state_;
  const std::string& label_;
};

/// Arguments that change what the files hold in ways that this reader does not know.
std::string unsupported_argument(const Reader& args) {
  for (const char* name :
       {"moe_extended_tp", "moe_mlp_glu_interleave_size", "heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json"}) {
    if (args.is_set(name)) return name;
  }
  return "";
}

/// A hybrid model (megatron/core/models/hybrid) has a letter for each layer, attention and MLP being layers of their own, and `|` between
/// the stages, where they are stated. Behind a `/` stand prediction layers.
void read_hybrid_pattern(const Reader& in, MegatronArgs& args) {
  const char* name = in.is_set("hybrid_layer_pattern") ? "hybrid_layer_pattern" : "hybrid_override_pattern";
  if (!in.is_set(name)) return;
  const std::string pattern = in.text(name);
  std::string layout;
  for (const char c : pattern) {
    if (c == '/') args.unsupported = name;
    layout += c == '|' ? '|' : 't';
  }
  const auto layers = static_cast<std::uint64_t>(std::count(layout.begin(), layout.end(), 't'));
  if (pattern.empty() || !args.layout.empty() || args.layers.value_or(layers) != layers) args.unsupported = name;
  if (layers != layout.size()) args.layout = layout;
  args.layers = layers;
}

/// Without grouped queries num_query_groups says nothing: as many groups as heads. Where the flag is not known, the shapes tell.
std::optional<std::uint64_t> groups_of(const Reader& in, const std::optional<std::uint64_t>& heads) {
  const auto is_grouped = in.known_flag("group_query_attention");
  if (!is_grouped) return std::nullopt;
  return *is_grouped ? in.number("num_query_groups") : heads;
}

void read_attention(const Reader& in, MegatronArgs& args) {
  args.hidden_size = in.number("hidden_size");
  args.heads = in.number("num_attention_heads");
  args.rotary_interleaved = in.flag("rotary_interleaved");
  if (in.flag("multi_latent_attention")) return;
  args.groups = groups_of(in, args.heads);
  args.head_dim = in.number("kv_channels");
}

void write(WireWriter& out, const std::optional<std::uint64_t>& value) {
  out.number(value ? *value + 1 : 0);
}

std::optional<std::uint64_t> read_optional(WireReader& in) {
  const std::uint64_t value = in.number();
  return value == 0 ? std::nullopt : std::optional(value - 1);
}

void write(WireWriter& out, const MegatronArgs& args) {
  for (const std::uint64_t size : {args.tensor, args.pipeline, args.expert}) out.number(size);
  for (const auto& value : {args.expert_tensor, args.layers, args.experts, args.padded_vocabulary, args.first_stage_layers,
                            args.last_stage_layers, args.lora_alpha, args.hidden_size, args.heads, args.groups, args.head_dim})
    write(out, value);
  for (const bool flag : {args.embedding_counts, args.loss_counts, args.zero_centred_norms, args.rank_stabilised, args.rotary_interleaved})
    out.number(flag ? 1 : 0);
  out.text(args.layout);
  out.text(args.unsupported);
}

MegatronArgs read_args(WireReader& in) {
  MegatronArgs args;
  for (std::uint64_t* size : {&args.tensor, &args.pipeline, &args.expert}) *size = in.number();
  for (auto* value : {&args.expert_tensor, &args.layers, &args.experts, &args.padded_vocabulary, &args.first_stage_layers,
                      &args.last_stage_layers, &args.lora_alpha, &args.hidden_size, &args.heads, &args.groups, &args.head_dim})
    *value = read_optional(in);
  for (bool* flag : {&args.embedding_counts, &args.loss_counts, &args.zero_centred_norms, &args.rank_stabilised, &args.rotary_interleaved})
    *flag = in.number_up_to(1) == 1;
  args.layout = in.text();
  args.unsupported = in.text();
  return args;
}

}  // namespace

std::optional<MegatronArgs> read_megatron_args(const Node& root, const std::string& label) {
  const Node* node = root.find("args");
  const Node* state = node == nullptr ? nullptr : node->state();
  if (state == nullptr) return std::nullopt;
  const Reader in(*state, label);
  MegatronArgs args;
  const auto tensor = in.size("tensor_model_parallel_size");
  args.tensor = tensor ? *tensor : in.size("model_parallel_size").value_or(1);
  args.pipeline = in.size("pipeline_model_parallel_size").value_or(1);
  args.expert = in.size("expert_model_parallel_size").value_or(1);
  args.expert_tensor = in.size("expert_tensor_parallel_size");
  args.layers = in.number("num_layers");
  args.experts = in.number("num_experts");
  args.padded_vocabulary = in.number("padded_vocab_size");
  args.first_stage_layers = in.number("decoder_first_pipeline_num_layers");
  args.last_stage_layers = in.number("decoder_last_pipeline_num_layers");
  args.embedding_counts = in.flag("account_for_embedding_in_pipeline_split");
  args.loss_counts = in.flag("account_for_loss_in_pipeline_split");
  args.layout = in.layout();
  args.zero_centred_norms = in.flag("apply_layernorm_1p") || in.flag("layernorm_zero_centered_gamma");
  args.lora_alpha = in.whole("lora_alpha");
  args.rank_stabilised = in.flag("use_rslora");
  read_attention(in, args);
  args.unsupported = unsupported_argument(in);
  read_hybrid_pattern(in, args);
  return args;
}

void add_model_facts(const MegatronArgs& args, Facts& facts) {
  const auto add = [&](const char* name, const std::optional<std::uint64_t>& value) {
    if (value.value_or(0) > 0) facts[name] = *value;
  };
  if (args.layers) facts["args_layers"] = *args.layers;
  add("args_experts", args.experts);
  add("args_hidden_size", args.hidden_size);
  add("args_heads", args.heads);
  add("args_groups", args.groups);
  add("args_head_dim", args.head_dim);
  facts["zero_centred_norms"] = args.zero_centred_norms ? 1 : 0;
  if (args.rotary_interleaved) facts["rotary_interleaved"] = 1;
  if (args.lora_alpha) facts[alpha_fact] = *args.lora_alpha;
  if (args.rank_stabilised) facts[rank_stabilised_fact] = 1;
}

std::vector<std::byte> encode(const MegatronFile& file) {
  WireWriter out;
  out.number(file.args ? 1 : 0);
  if (file.args) write(out, *file.args);
  out.number(file.chunk_layers.size());
  for (const std::uint64_t layers : file.chunk_layers) out.number(layers);
  out.number(file.has_embedding ? 1 : 0);
  out.number(file.routed_experts);
  out.number(file.local_experts);
  return out.take();
}

MegatronFile decode_megatron_file(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  MegatronFile file;
  if (in.number_up_to(1) == 1) file.args = read_args(in);
  const std::uint64_t chunks = in.number_up_to(bytes.size());
  for (std::uint64_t i = 0; i < chunks; ++i) file.chunk_layers.push_back(in.number());
  file.has_embedding = in.number_up_to(1) == 1;
  file.routed_experts = in.number();
  file.local_experts = in.number();
  return file;
}

}  // namespace unshard
