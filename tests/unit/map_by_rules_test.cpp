// What map_tensors makes of adapters, of a custom mapping, and after the example of another folder (--like); and how long it takes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "support/gather.h"
#include "support/tiny_llama.h"

namespace unshard::testing_support {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- adapters

std::vector<TensorRow> llama_with_lora() {
  std::vector<TensorRow> table = llama();
  for (TensorRow& row : table) row.name.insert(0, "base_model.model.");
  table[1].name = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight";
  table.push_back({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", DType::f32, {2, 4}, 0});
  table.push_back({"base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight", DType::f32, {4, 2}, 0});
  return table;
}

TEST(Lora, TensorsAreRefusedByNameUnlessDropped) {
  EXPECT_THAT(error_of(llama_with_lora(), llama_config, {}, ErrorCode::unsupported),
              ::testing::AllOf(HasSubstr("q_proj.lora_A.default.weight"), HasSubstr("--lora drop")));
  MapOptions options;
  options.lora.what = LoraChoice::What::drop;
  const Mapping mapping = map(llama_with_lora(), llama_config, options);
  std::vector<std::string> plain;
  for (const TensorRow& row : llama()) plain.push_back(row.name);
  EXPECT_EQ(names_of(mapping), plain);
  EXPECT_EQ(mapping.targets.unused.size(), 2U);
  EXPECT_THAT(joined(mapping.notes), HasSubstr("Dropped 2 LoRA tensors"));
}

TEST(Lora, TrainedModulesGoTooAndTheOriginalsStay) {
  std::vector<TensorRow> table = llama_with_lora();
  table[11].name = "base_model.model.lm_head.original_module.weight";
  table.push_back({"base_model.model.lm_head.modules_to_save.default.weight", DType::f32, {6, 4}, 0});
  MapOptions options;
  options.lora.what = LoraChoice::What::drop;
  const Mapping mapping = map(table, llama_config, options);
  EXPECT_EQ(target_of(mapping, "lm_head.weight").terms[0].source, 11U);
  EXPECT_EQ(mapping.targets.unused.size(), 3U);
}

TEST(Lora, WithoutBaseWeightsThereIsNothingToWrite) {
  const std::vector<TensorRow> table{{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", DType::f32, {2, 4}, 0}};
  MapOptions options;
  options.lora.what = LoraChoice::What::drop;
  EXPECT_THAT(error_of(table, llama_config), HasSubstr("no base weights"));
  EXPECT_THAT(error_of(table, llama_config, options), HasSubstr("--fill-missing-from"));
}

// ---- custom mapping

TEST(CustomMapping, PlainFormRenamesParts) {
  std::vector<TensorRow> table = llama();
  for (TensorRow& row : table)
    row.name = row.name.rfind("model.", 0) == 0 ? "net.decoder." + row.name.substr(6) : "net.head." + row.name.substr(8);
  EXPECT_THAT(error_of(table, llama_config), HasSubstr("net.decoder."));
  MapOptions options;
  options.custom_mapping = R"({"net.decoder.": "model.", "net.head.": "lm_head."})";
  options.custom_mapping_path = "names.json";
  EXPECT_EQ(names_of(map(table, llama_config, options)), names_of(map(llama(), llama_config)));
}

TEST(CustomMapping, RulesComeBeforeTheFamilys) {
  std::vector<TensorRow> table = llama();
  erase_row(table, "model.layers.0.mlp.up_proj.weight");
  table[5] = {"model.layers.0.mlp.w13", DType::bf16, {4, 6}, 0};
  MapOptions options;
  options.custom_mapping_path = "rules.json";
  options.custom_mapping = R"-({"rules": [{"source": "model.layers.{l}.mlp.w13", "axes": "h (i p=2)",
    "targets": {"model.layers.{l}.mlp.gate_proj.weight": "p=0: i h", "model.layers.{l}.mlp.up_proj.weight": "p=1: i h"}}]})-";
  const Mapping mapping = map(table, llama_config, options);
  EXPECT_EQ(mapping.targets.targets.size(), 12U);
  std::vector<Numbers> stored(table.size());
  stored[5] = counted({4, 6});
  EXPECT_THAT(gathered(target_of(mapping, "model.layers.0.mlp.up_proj.weight"), stored),
              ElementsAre(1, 7, 13, 19, 3, 9, 15, 21, 5, 11, 17, 23));
}

TEST(CustomMapping, ThatIsWrongIsRefusedByFile) {
  for (const char* text :
       {"", "{", "[1]", R"({"a": 1})", R"({"": "x"})", R"({"rules": [{"source": "a"}]})", R"({"rules": [], "colour": 1})"}) {
    MapOptions options;
    options.custom_mapping = text;
    options.custom_mapping_path = "names.json";
    EXPECT_THAT(error_of(llama(), llama_config, options), StartsWith("names.json: ")) << text;
  }
}

TEST(CustomMapping, PiecesAreJoined) {
  const std::vector<TensorRow> table{{"part.1", DType::f32, {1, 2}, 0}, {"part.0", DType::f32, {1, 2}, 0}};
  MapOptions options;
  options.custom_mapping_path = "rules.json";
  options.custom_mapping = R"({"rules": [{"sources": {"part.{t}": "r c"}, "target": "whole", "axes": "(t r) c"}]})";
  const Mapping mapping = map(table, "{}", options);
  ASSERT_THAT(names_of(mapping), ElementsAre("whole"));
  EXPECT_THAT(gathered(mapping.targets.targets[0], {counted({1, 2}, 2), counted({1, 2})}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(error_of({table[0]}, "{}", options), HasSubstr("part"));
  EXPECT_THAT(error_of({table[0], {"part.0", DType::bf16, {1, 2}, 0}}, "{}", options), HasSubstr("float32"));
}

TEST(Translation, ANameWithoutRuleIsRefusedWhereNamesAreNotPublished) {
  MapOptions options;
  options.names_are_published = false;
  std::vector<TensorRow> table = llama();
  EXPECT_EQ(map(table, llama_config, options).targets.targets.size(), 12U) << "names of the table are published ones";
  table.push_back({"decoder.layers.0.self_attention.out_mix.weight", DType::bf16, {4, 4}, 0});
  EXPECT_THAT(error_of(table, llama_config, options),
              ::testing::AllOf(HasSubstr("out_mix"), HasSubstr("--custom-mapping"), HasSubstr("--drop")));
}

// ---- like

constexpr const char* moe_config = R"({"model_type": "qwen3_moe", "dtype": "bfloat16", "hidden_size": 2})";

const std::vector<TensorRow> fused_rows{{"model.layers.0.mlp.experts.gate_up_proj", DType::bf16, {2, 2, 2}, 0},
                                        {"model.layers.0.mlp.experts.down_proj", DType::bf16, {2, 2, 1}, 0}};

std::vector<TensorRow> single_rows(DType dtype) {
  std::vector<TensorRow> rows;
  for (const std::string expert : {"0", "1"}) {
    rows.push_back({"model.layers.0.mlp.experts." + expert + ".gate_proj.weight", dtype, {1, 2}, 0});
    rows.push_back({"model.layers.0.mlp.experts." + expert + ".up_proj.weight", dtype, {1, 2}, 0});
    rows.push_back({"model.layers.0.mlp.experts." + expert + ".down_proj.weight", dtype, {2, 1}, 0});
  }
  return rows;
}

MapOptions like(std::vector<TensorRow> rows) {
  MapOptions options;
  options.like = LikeFolder{"base", std::move(rows)};
  return options;
}

TEST(Like, OneByOneExpertsBecomeFused) {
  const Mapping mapping = map(single_rows(DType::bf16), moe_config, like(fused_rows));
  ASSERT_EQ(mapping.targets.targets.size(), 2U);
  std::vector<Numbers> stored;
  for (const TensorRow& row : single_rows(DType::bf16)) stored.push_back(counted(row.shape, stored.size() * 2));
  // gate 0 = 0 1, up 0 = 2 3, down 0 = 4 5, gate 1 = 6 7, up 1 = 8 9, down 1 = 10 11
  EXPECT_THAT(gathered(target_of(mapping, "model.layers.0.mlp.experts.gate_up_proj"), stored), ElementsAre(0, 1, 2, 3, 6, 7, 8, 9));
  EXPECT_THAT(gathered(target_of(mapping, "model.layers.0.mlp.experts.down_proj"), stored), ElementsAre(4, 5, 10, 11));
}

TEST(Like, FusedStayFusedAndFusedBecomeOneByOne) {
  EXPECT_THAT(names_of(map(fused_rows, moe_config, like(fused_rows))),
              ElementsAre("model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj"));
  const Mapping mapping = map(fused_rows, moe_config, like(single_rows(DType::f32)));
  EXPECT_EQ(mapping.targets.targets.size(), 6U);
  EXPECT_EQ(mapping.targets.targets[0].dtype, DType::f32) << "types follow too";
  EXPECT_THAT(gathered(target_of(mapping, "model.layers.0.mlp.experts.1.up_proj.weight"), {counted({2, 2, 2}), {}}), ElementsAre(6, 7));
}

TEST(Like, ATypeThatNothingIsConvertedToIsRefused) {
  const std::string said = error_of(single_rows(DType::bf16), moe_config, like(single_rows(DType::f8_e4m3)), ErrorCode::unsupported);
  EXPECT_THAT(said, HasSubstr("--like folder base"));
  EXPECT_THAT(said, HasSubstr("bfloat16"));
}

TEST(Like, AStackThatStaysFusedHasTheStoredElements) {
  const Mapping mapping = map(fused_rows, moe_config, like(fused_rows));
  EXPECT_THAT(gathered(target_of(mapping, "model.layers.0.mlp.experts.gate_up_proj"), {counted({2, 2, 2}), {}}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Like, PublishedNamesOfVisionModelsWithoutFamily) {
  const std::vector<TensorRow> table{{"model.language_model.norm.weight", DType::f32, {2}, 0},
                                     {"model.visual.proj.weight", DType::f32, {2}, 0},
                                     {"lm_head.weight", DType::f32, {2}, 0}};
  const std::vector<TensorRow> published{
      {"model.norm.weight", DType::f32, {2}, 0}, {"visual.proj.weight", DType::f32, {2}, 0}, {"lm_head.weight", DType::f32, {2}, 0}};
  EXPECT_THAT(names_of(map(table, R"({"model_type": "new_vl"})", like(published))),
              ElementsAre("model.norm.weight", "visual.proj.weight", "lm_head.weight"));
}

TEST(Like, TransposedExpertsFollowTheShape) {
  const std::string name = "model.language_model.layers.0.mlp.experts.down_proj";
  const Mapping mapping =
      map({{name, DType::bf16, {1, 2, 3}, 0}}, R"({"model_type": "qwen3_vl_moe"})", like({{name, DType::bf16, {1, 3, 2}, 0}}));
  EXPECT_THAT(gathered(mapping.targets.targets.at(0), {counted({1, 2, 3})}), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(Like, WhatCannotBeMatchedIsNamedBothWays) {
  std::vector<TensorRow> rows = llama();
  rows.push_back({"visual.proj.weight", DType::bf16, {2}, 0});
  EXPECT_THAT(error_of(llama(), llama_config, like(rows)),
              StartsWith("visual.proj.weight: in the --like folder base, missing in the checkpoint"));
  EXPECT_THAT(error_of(rows, llama_config, like(llama())),
              StartsWith("visual.proj.weight: in the checkpoint, not in the --like folder base"));
  rows = llama();
  rows[10].shape = {5};
  EXPECT_THAT(error_of(llama(), llama_config, like(rows)), HasSubstr("model.norm.weight"));
}

TEST(Like, ATiedHeadMayBeOnEitherSide) {
  std::vector<TensorRow> headless = llama();
  erase_row(headless, "lm_head.weight");
  EXPECT_EQ(map(headless, tied_config, like(llama())).targets.targets.size(), 11U);
  EXPECT_EQ(map(llama(), tied_config, like(headless), TieAnswer::equal).targets.targets.size(), 11U);
  EXPECT_EQ(map(llama(), tied_config, like(headless), TieAnswer::different).targets.targets.size(), 12U);
}

TEST(Like, ABufferOfTheFolderIsKept) {
  std::vector<TensorRow> table = llama();
  table.push_back({"model.rotary_emb.inv_freq", DType::f32, {2}, 0});
  EXPECT_EQ(map(table, llama_config, like(table)).targets.targets.size(), 13U);
}

// ---- size

/// A mixture of experts with so many layers of 256: fused experts, as modules have them.
std::vector<TensorRow> fused_experts(int layers) {
  std::vector<TensorRow> table{{"model.embed_tokens.weight", DType::bf16, {100, 64}, 0},
                               {"model.norm.weight", DType::bf16, {64}, 0},
                               {"lm_head.weight", DType::bf16, {100, 64}, 0}};
  for (int l = 0; l < layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      table.push_back({layer + "self_attn." + name + ".weight", DType::bf16, {64, 64}, 0});
    for (const char* name : {"q_norm", "k_norm"}) table.push_back({layer + "self_attn." + name + ".weight", DType::bf16, {16}, 0});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      table.push_back({layer + name + ".weight", DType::bf16, {64}, 0});
    table.push_back({layer + "mlp.gate.weight", DType::bf16, {256, 64}, 0});
    table.push_back({layer + "mlp.experts.gate_up_proj", DType::bf16, {256, 64, 64}, 0});
    table.push_back({layer + "mlp.experts.down_proj", DType::bf16, {256, 64, 32}, 0});
  }
  return table;
}

/// Maps it to experts one by one, those to themselves, and back. Returns the seconds of processor time.
double map_experts(int layers) {
  const std::string config =
      R"({"model_type": "qwen3_moe", "dtype": "bfloat16", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 256, "num_hidden_layers": )" +
      std::to_string(layers) +
      R"(, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 100, "decoder_sparse_step": 1})";
  const std::vector<TensorRow> table = fused_experts(layers);
  const std::clock_t begin = std::clock();
  const Mapping mapping = map(table, config);
  EXPECT_EQ(mapping.targets.targets.size(), 3U + static_cast<std::size_t>(layers) * (9 + 768));
  std::vector<TensorRow> singles;
  for (const Target& target : mapping.targets.targets) singles.push_back({target.name, target.dtype, target.shape, 0});
  EXPECT_EQ(map(singles, config).targets.targets.size(), singles.size());
  EXPECT_EQ(map(singles, config, like(table)).targets.targets.size(), table.size());
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// A model of 671B parameters has 46,000 tensors one by one; mapping is done on every rank and must not be felt.
TEST(Size, FourTimesTheTensorsAreNotMappedInSixteenTimesTheTime) {
  double shortest = 1e9;
  for (int repetition = 0; repetition < 3; ++repetition) shortest = std::min(shortest, map_experts(6));
  EXPECT_LT(map_experts(24), 10 * shortest);
}

}  // namespace
}  // namespace unshard::testing_support
