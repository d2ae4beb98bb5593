// Adapters of Megatron's layers: their names and stacks, and where the run says alpha.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "adapter_output.h"
#include "names.h"
#include "unshard/error.h"
#include "unshard/lora.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using testing::HasSubstr;

const std::string qkv = "decoder.layers.self_attention.linear_qkv.";

std::vector<Adapter> found(const std::vector<TensorRow>& table, bool of_megatron = true) {
  return find_adapters(table, 0, static_cast<TensorId>(table.size()), false, of_megatron);
}

TensorRow row(const std::string& name, const Shape& shape) {
  return {name, DType::f32, shape, 0};
}

ErrorCode code_of(const std::function<void()>& work, const std::string& says) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(says));
    return error.code();
  }
  return ErrorCode::internal;
}

TEST(MegatronAdapters, StacksStandInFrontOfTheMatrices) {
  const auto adapters = found({row(qkv + "adapter.linear_in.weight", {2, 4, 16}), row(qkv + "adapter.linear_out.weight", {2, 32, 4})});
  ASSERT_EQ(adapters.size(), 1U);
  ASSERT_EQ(adapters[0].pairs.size(), 1U);
  const LoraPair& pair = adapters[0].pairs[0];
  EXPECT_EQ(pair.module, "decoder.layers.self_attention.linear_qkv");
  EXPECT_EQ(pair.rank, 4U);
  EXPECT_EQ(pair.stack, Shape{2});
  EXPECT_TRUE(pair.of_bridge);
}

TEST(MegatronAdapters, AMatrixThatAllExpertsShareHasNoDimensionForThem) {
  const std::string fc2 = "decoder.layers.mlp.experts.experts.linear_fc2.lora_";
  const auto adapters = found({row(fc2 + "A.default.weight", {2, 8, 4, 6}), row(fc2 + "B.default.weight", {2, 16, 4})});
  EXPECT_EQ(adapters.at(0).name, "default");
  EXPECT_EQ(adapters.at(0).pairs.at(0).stack, (Shape{2, 8}));
}

TEST(MegatronAdapters, StacksOfDifferentLayersAreRefused) {
  const auto work = [] {
    (void)found({row(qkv + "adapter.linear_in.weight", {2, 4, 16}), row(qkv + "adapter.linear_out.weight", {3, 32, 4})});
  };
  EXPECT_EQ(code_of(work, "[3, 32, 4]"), ErrorCode::bad_input);
}

TEST(MegatronAdapters, WithPublishedNamesThreeDimensionsAreAConvolution) {
  const auto work = [] {
    (void)found({row("conv.lora_A.default.weight", {4, 3, 3}), row("conv.lora_B.default.weight", {8, 4, 1})}, false);
  };
  EXPECT_EQ(code_of(work, "convolutions"), ErrorCode::unsupported);
}

TEST(MegatronAdapters, TheCanonicalFormHasAPairForEachProjection) {
  const std::string mark = qkv + "adapter.adapter_";
  const auto adapters = found({row(mark + "q.linear_in.weight", {4, 16}), row(mark + "q.linear_out.weight", {16, 4}),
                               row(mark + "k.linear_in.weight", {4, 16}), row(mark + "k.linear_out.weight", {8, 4})});
  ASSERT_EQ(adapters.at(0).pairs.size(), 2U);
  EXPECT_EQ(adapters[0].pairs[0].projection, "q");
  EXPECT_EQ(adapters[0].pairs[1].projection, "k");
  EXPECT_EQ(adapters[0].pairs[0].module, adapters[0].pairs[1].module);
}

TEST(MegatronAdapters, DoraIsRefusedByName) {
  const auto work = [] { (void)found({row(qkv + "adapter.weight_magnitude", {32})}); };
  EXPECT_EQ(code_of(work, "linear_qkv.adapter.weight_magnitude"), ErrorCode::unsupported);
}

TEST(MegatronAdapters, AModelsOwnAdapterModuleIsNone) {
  EXPECT_FALSE(lora_matrix("wav2vec2.encoder.layers.0.adapter.weight"));
  EXPECT_FALSE(is_lora("wav2vec2.adapter.layers.0.conv.weight"));
}

TEST(BridgeConfig, AlphaIsTheOneOfThePeftBlock) {
  const auto config = parse_bridge_config(
      "model:\n  alpha: 7\npeft:\n  # LoRA\n  alpha: 32  # scale\n  dim: 16\n  inner:\n    alpha: 5\ntrain:\n  alpha: 9\n", "f");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->alpha, 32);
  EXPECT_EQ(config->rank, 16);
}

TEST(BridgeConfig, WhatIsNoPlainNumberGivesNoAlpha) {
  EXPECT_FALSE(parse_bridge_config("peft: null\n", "f"));
  EXPECT_FALSE(parse_bridge_config("model:\n  peft:\n    alpha: 3\n", "f"));
  for (const char* text :
       {"peft:\n  alpha: null\n", "peft:\n  alpha: &a 3\n", "peft: {alpha: 3}\n", "peft:\n  alpha: 3\n  alpha: 4\n", "peft:"}) {
    const auto config = parse_bridge_config(text, "f");
    ASSERT_TRUE(config) << text;
    EXPECT_FALSE(config->alpha) << text;
  }
}

TEST(SwiftArgs, SettingsOfALoraRun) {
  const auto config = parse_swift_args(R"({"tuner_type": "lora", "lora_alpha": 8, "lora_rank": 4, "use_rslora": true})", "args.json");
  ASSERT_TRUE(config);
  EXPECT_EQ(config->alpha, 8);
  EXPECT_TRUE(config->rank_stabilised);
  EXPECT_EQ(scale_of(*config, "any", 4), 4.0);
}

TEST(SwiftArgs, ARunWithoutLoraSaysNothing) {
  EXPECT_FALSE(parse_swift_args(R"({"train_type": "full", "lora_alpha": 32})", "args.json"));
  EXPECT_FALSE(parse_swift_args(R"({"learning_rate": 1})", "args.json"));
}

TEST(MegatronAdapters, WhatTheFamilyRefusesIsRefusedOfAnAdapterToo) {
  const std::vector<TensorRow> table{row(qkv + "adapter.linear_in.weight", {1, 2, 4}), row(qkv + "adapter.linear_out.weight", {1, 12, 2})};
  const auto config = ModelConfig::parse(R"({"model_type": "olmoe", "num_attention_heads": 1, "hidden_size": 4})", "config.json");
  MapOptions map;
  map.names_are_published = false;
  map.facts = {{"tensor_parallel", 1}};
  AdapterUse use{"", found(table).at(0), {}, 1};
  use.config.alpha = 4;
  EXPECT_EQ(code_of([&] { (void)adapters_beside(table, config, map, {use}, ""); }, "nothing tells which"), ErrorCode::unsupported);
}

TEST(MegatronAdapters, NorIsAFullCopyOfSuchALayerTranslated) {
  const std::string layer = "decoder.layers.0.self_attention.linear_";
  const std::vector<TensorRow> table{row(layer + "proj.lora_A.default.weight", {2, 4}), row(layer + "proj.lora_B.default.weight", {4, 2}),
                                     row(layer + "proj.weight", {4, 4}), row(layer + "qkv.modules_to_save.default.weight", {12, 4}),
                                     row(layer + "qkv.weight", {12, 4})};
  const auto config = ModelConfig::parse(R"({"model_type": "olmoe", "num_attention_heads": 1, "hidden_size": 4})", "config.json");
  MapOptions map;
  map.names_are_published = false;
  map.facts = {{"tensor_parallel", 1}};
  AdapterUse use{"", found(table).at(0), {}, 1};
  ASSERT_EQ(use.adapter.replacements.size(), 1U);
  use.config.alpha = 4;
  EXPECT_EQ(code_of([&] { (void)adapters_beside(table, config, map, {use}, ""); }, "nothing tells which"), ErrorCode::unsupported);
}

}  // namespace
}  // namespace unshard
