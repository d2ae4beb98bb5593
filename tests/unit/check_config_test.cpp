// What `check` says of config.json against the tensors of a Hugging Face folder.
#include "check_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace unshard {
namespace {

using testing::HasSubstr;

constexpr const char* config_text =
    R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 6, "hidden_size": 4, "intermediate_size": 3,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": true})";

std::vector<TensorRow> model() {
  const std::string layer = "model.layers.0.";
  const DType type = DType::bf16;
  return {{"model.embed_tokens.weight", type, {6, 4}, 0},        {layer + "self_attn.q_proj.weight", type, {4, 4}, 0},
          {layer + "self_attn.k_proj.weight", type, {2, 4}, 0},  {layer + "self_attn.v_proj.weight", type, {2, 4}, 0},
          {layer + "self_attn.o_proj.weight", type, {4, 4}, 0},  {layer + "mlp.gate_proj.weight", type, {3, 4}, 0},
          {layer + "mlp.up_proj.weight", type, {3, 4}, 0},       {layer + "mlp.down_proj.weight", type, {4, 3}, 0},
          {layer + "input_layernorm.weight", type, {4}, 0},      {layer + "post_attention_layernorm.weight", type, {4}, 0},
          {"model.norm.weight", type, {4}, 0}};
}

std::string lines(const std::vector<TensorRow>& table, bool lacks_files = false, const std::string& text = config_text) {
  std::string out;
  for (const Finding& finding : compare_with_config(table, ModelConfig::parse(text, "m/config.json"), lacks_files))
    out += std::string(finding.severity == Severity::error ? "error " : "note ") + finding.subject + ": " + finding.text + "\n";
  return out;
}

TEST(CheckConfig, FindsNothingInASoundModel) {
  EXPECT_EQ(lines(model()), "") << "a tied head need not be there";
  EXPECT_EQ(lines({{"w", DType::f32, {3}, 0}}, false, R"({"model_type": "unheard_of"})"), "");
}

TEST(CheckConfig, FindsAllInOneRun) {
  std::vector<TensorRow> table = model();
  table[1].shape = {4, 5};
  table[6].shape = {9, 4};
  table[9].dtype = DType::f32;
  table.back().name = "model.morn.weight";
  const std::string got = lines(table);
  EXPECT_THAT(got, HasSubstr("error model.layers.0.self_attn.q_proj.weight: shape [4, 5], but m/config.json implies [4, 4]"));
  EXPECT_THAT(got, HasSubstr("error model.layers.0.mlp.up_proj.weight: shape [9, 4], but m/config.json implies [3, 4]"));
  EXPECT_THAT(got, HasSubstr("error config.json: expects 1 tensor that no file holds: model.norm.weight\n"));
  EXPECT_THAT(got, HasSubstr("note config.json: does not expect 1 tensor that the files hold: model.morn.weight\n"));
  EXPECT_THAT(got, HasSubstr("note config.json: says bfloat16, but 1 tensor is float32: model.layers.0.post_attention_layernorm.weight\n"));
}

TEST(CheckConfig, MissingTensorsAreNoNewsWhereFilesAreMissing) {
  std::vector<TensorRow> table = model();
  table.pop_back();
  EXPECT_EQ(lines(table, true), "");
}

TEST(CheckConfig, SaysWhatIsWrongWithConfig) {
  EXPECT_THAT(lines(model(), false, R"({"model_type": "llama", "hidden_size": "four"})"), HasSubstr("error config.json: "));
}

}  // namespace
}  // namespace unshard
