// The model that Megatron's training arguments describe (megatron/training/arguments.py) must be the one of config.json. Shapes alone do
// not show it: 4 heads and 2 groups of 4 rows fill the same fused q, k, v as 2 heads and 1 group of 8, in another order.
#include <array>

#include "mapping_steps.h"
#include "unshard/error.h"

namespace unshard {
namespace {

struct ComparedNumber {
  const char* fact;
  const char* argument;
  const char* in_config;  ///< an expression: what the families call it
};

constexpr std::array compared_numbers{
    ComparedNumber{"args_layers", "num_layers", "num_hidden_layers | n_layer | layers"},
    ComparedNumber{"args_hidden_size", "hidden_size", "hidden_size | n_embd"},
    ComparedNumber{"args_heads", "num_attention_heads", "num_attention_heads | n_head"},
    ComparedNumber{"args_groups", "num_query_groups", "num_key_value_heads | groups"},
    ComparedNumber{"args_head_dim", "kv_channels", "head_dim"},
    ComparedNumber{"args_experts", "num_experts", "num_experts | num_local_experts | n_routed_experts"},
};

/// The first name of such an expression.
std::string first_name(const ComparedNumber& number) {
  const std::string text = number.in_config;
  return text.substr(0, text.find(' '));
}

void require_same_numbers(const MapContext& context) {
  const auto names = context.names();
  std::string stated, configured;
  for (const ComparedNumber& number : compared_numbers) {
    const auto fact = context.options.facts.find(number.fact);
    if (fact == context.options.facts.end()) continue;
    const auto value = Expression::parse(number.in_config, "args").value(*names);
    if (!value || *value == fact->second) continue;
    const std::string separator = stated.empty() ? "" : ", ";
    stated += separator + number.argument + " " + std::to_string(fact->second);
    configured += separator + first_name(number) + " " + std::to_string(*value);
  }
  if (stated.empty()) return;
  throw Error(ErrorCode::bad_input, printable(context.config.path(), 4096) + ": says " + configured +
                                        " (options included), but args in the checkpoint say " + stated +
                                        "; give the model's own config.json (--hf-config) and no options that contradict it");
}

void require_same_rotation(const MapContext& context) {
  if (!context.options.facts.contains("rotary_interleaved") || context.family.interleaved_rotary) return;
  throw Error(ErrorCode::unsupported, "args.rotary_interleaved is set, but a " + context.family.name +
                                          " model is published with rotary embeddings of halves; this version does not reorder q and k");
}

}  // namespace

void check_megatron_args(const MapContext& context) {
  require_same_numbers(context);
  require_same_rotation(context);
}

}  // namespace unshard
