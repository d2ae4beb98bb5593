// Layers and experts of a Megatron checkpoint, by names and shapes.
#include "megatron_contents.h"

#include <gtest/gtest.h>

namespace unshard {
namespace {

TensorRow row(const std::string& name, const Shape& shape) {
  return {name, DType::bf16, shape, 0};
}

std::vector<std::string> errors(const std::vector<TensorRow>& table, const Facts& facts) {
  std::vector<std::string> texts;
  for (const Finding& finding : megatron_contents(table, facts, "run").findings) texts.push_back(finding.subject + ": " + finding.text);
  return texts;
}

using Texts = std::vector<std::string>;

TEST(MegatronContents, AreTold) {
  const std::vector<TensorRow> numbered{row("model.decoder.layers.1.mlp.linear_fc1.weight", {8, 4}),
                                        row("decoder.layers.0.mlp.experts.experts.linear_fc1.weight", {8, 16, 4}),
                                        row("vision_model.decoder.layers.5.mlp.linear_fc1.weight", {8, 4}),
                                        row("mtp.layers.3.enorm.weight", {4})};
  EXPECT_EQ(line_of(megatron_contents(numbered, {}, "run")), "layers 0-1; experts 8");
  const std::vector<TensorRow> stacked{row("decoder.layers.mlp.experts.experts.linear_fc2.weight", {3, 8, 4, 16}),
                                       row("decoder.layers.x.bias", {3, 4})};
  EXPECT_EQ(line_of(megatron_contents(stacked, {{"args_layers", 3}, {"args_experts", 8}}, "run")), "layers 0-2; experts 8");
  EXPECT_TRUE(errors(numbered, {}).empty());
  EXPECT_TRUE(errors(stacked, {{"args_layers", 3}, {"args_experts", 8}}).empty());
  EXPECT_EQ(line_of(megatron_contents({row("embedding.word_embeddings.weight", {8, 4})}, {}, "run")), "");
}

TEST(MegatronContents, LayersThatNoFileHasAreNamed) {
  const std::vector<TensorRow> table{row("decoder.layers.0.a.weight", {4}), row("decoder.layers.3.a.weight", {4})};
  EXPECT_EQ(errors(table, {}), (Texts{"run: no file has layers 1-2 of 4"}));
  EXPECT_EQ(errors(table, {{"args_layers", 6}}), (Texts{"run: no file has layers 1-2, 4-5 of 6"}));
  EXPECT_EQ(errors(table, {{"args_layers", 2}}),
            (Texts{"run: no file has layers 1 of 2", "run: has layer 3, but the training arguments say 2"}));
  EXPECT_EQ(errors({row("decoder.layers.a.weight", {2, 4})}, {{"args_layers", 3}}),
            (Texts{"decoder.layers.a.weight: holds 2 layers, but the training arguments say 3", "run: no file has layers 2 of 3"}));
}

TEST(MegatronContents, AdaptersAreNeitherLayersNorExperts) {
  const std::vector<TensorRow> adapters{row("decoder.layers.0.mlp.experts.experts.linear_fc1.lora_A.weight", {2, 4}),
                                        row("decoder.layers.5.self_attention.linear_qkv.adapter.linear_in.weight", {2, 4})};
  EXPECT_TRUE(errors(adapters, {{"args_layers", 2}, {"args_experts", 8}}).empty());
  std::vector<TensorRow> both = adapters;
  both.push_back(row("decoder.layers.0.a.weight", {4}));
  EXPECT_EQ(errors(both, {{"args_layers", 2}}), (Texts{"run: no file has layers 1 of 2"}));
}

TEST(MegatronContents, ExpertsThatAreNotThereAreCounted) {
  const std::string name = "decoder.layers.0.mlp.experts.experts.linear_fc1.weight";
  EXPECT_EQ(errors({row(name, {4, 16, 4})}, {{"args_experts", 8}}), (Texts{name + ": holds 4 experts, but the training arguments say 8"}));
}

}  // namespace
}  // namespace unshard
