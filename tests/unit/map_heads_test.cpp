// What map_tensors decides of heads, tied and other ones, and of element types.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tiny_llama.h"

namespace unshard::testing_support {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// ---- ties

TEST(Tie, IsAskedForOnceBothAreStored) {
  const auto question = tie_question(llama(DType::f32), ModelConfig::parse(tied_config, "c"), {});
  ASSERT_TRUE(question);
  EXPECT_EQ(question->embedding, 0U);
  EXPECT_EQ(question->head, 11U);
  EXPECT_EQ(question->dtype, DType::bf16) << "compared after the cast";
  EXPECT_FALSE(tie_question(llama(), ModelConfig::parse(llama_config, "c"), {}));
  std::vector<TensorRow> table = llama();
  erase_row(table, "lm_head.weight");
  EXPECT_FALSE(tie_question(table, ModelConfig::parse(tied_config, "c"), {}));
}

TEST(Tie, AnEqualHeadIsNotWritten) {
  const Mapping mapping = map(llama(), tied_config, {}, TieAnswer::equal);
  EXPECT_EQ(mapping.targets.targets.size(), 11U);
  ASSERT_EQ(mapping.targets.unused.size(), 1U);
  EXPECT_EQ(mapping.targets.unused[0].name, "lm_head.weight");
  EXPECT_EQ(mapping.targets.unused[0].reason, "tied copy of model.embed_tokens.weight");
  EXPECT_FALSE(mapping.edits.tie_word_embeddings);
}

TEST(Tie, ADifferentHeadIsWrittenAndTheFlagPutRight) {
  const Mapping mapping = map(llama(), tied_config, {}, TieAnswer::different);
  EXPECT_EQ(mapping.targets.targets.size(), 12U);
  EXPECT_EQ(mapping.edits.tie_word_embeddings, false);
  EXPECT_THAT(joined(mapping.warnings), HasSubstr("tie_word_embeddings"));
}

TEST(Tie, AFlagThatIsNoBooleanIsRefused) {
  for (const char* value : {"\"true\"", "1", "[]"}) {
    const std::string config = with(llama_config, std::string("\"tie_word_embeddings\": ") + value);
    EXPECT_THAT(error_of(llama(), config), AllOf(HasSubstr("hf/config.json"), HasSubstr("tie_word_embeddings")));
  }
  EXPECT_EQ(map(llama(), with(llama_config, R"("tie_word_embeddings": null)")).targets.targets.size(), 12U);
}

TEST(Tie, AHeadOfAnotherShapeIsDifferent) {
  std::vector<TensorRow> table = llama();
  table.back().shape = {7, 4};
  const std::string config = with(tied_config, R"("model_type": "other")");
  EXPECT_FALSE(tie_question(table, ModelConfig::parse(config, "c"), {}));
  EXPECT_EQ(map(table, config).edits.tie_word_embeddings, false);
}

TEST(Tie, AMissingHeadIsAskedForUnlessTied) {
  std::vector<TensorRow> table = llama();
  erase_row(table, "lm_head.weight");
  EXPECT_EQ(map(table, tied_config).targets.targets.size(), 11U);
  EXPECT_THAT(error_of(table, llama_config), StartsWith("lm_head.weight: missing"));
  MapOptions options;
  options.tie_word_embedding = true;
  const Mapping mapping = map(table, llama_config, options);
  EXPECT_EQ(mapping.targets.targets.size(), 11U);
  EXPECT_EQ(mapping.edits.tie_word_embeddings, true);
}

TEST(Tie, TheFlagMustNotContradictTheCheckpoint) {
  MapOptions options;
  options.tie_word_embedding = true;
  EXPECT_TRUE(tie_question(llama(), ModelConfig::parse(llama_config, "c"), options));
  EXPECT_THAT(error_of(llama(), llama_config, options, ErrorCode::bad_input, TieAnswer::different),
              StartsWith("lm_head.weight: is stored and differs"));
  EXPECT_EQ(map(llama(), llama_config, options, TieAnswer::equal).edits.tie_word_embeddings, true);
}

TEST(Tie, WithoutTheKeyTheModelTypeDecides) {
  const std::string numbers =
      R"({"vocab_size": 6, "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2)";
  std::vector<TensorRow> table = llama();
  erase_row(table, "lm_head.weight");
  EXPECT_EQ(map(table, numbers + R"(, "model_type": "gemma"})").targets.targets.size(), 11U);
  EXPECT_THAT(error_of(table, numbers + R"(, "model_type": "llama"})"), StartsWith("lm_head.weight: missing"));
}

// ---- other heads

TEST(Head, OfAValueModelIsKeptAndNoOtherAskedFor) {
  std::vector<TensorRow> table = llama();
  table.back() = {"score.weight", DType::bf16, {1, 4}, 0};
  table.push_back({"score.bias", DType::bf16, {1}, 0});
  for (const bool flag : {true, false}) {
    MapOptions options;
    options.is_value_model = flag;
    const Mapping mapping = map(table, with(llama_config, R"("architectures": ["LlamaForTokenClassification"])"), options);
    EXPECT_EQ(mapping.targets.targets.size(), 13U);
    EXPECT_THAT(mapping.notes, IsEmpty());
  }
  MapOptions options;
  options.is_value_model = true;
  EXPECT_EQ(map(table, llama_config, options).targets.targets.size(), 13U);
}

TEST(Head, ConfigJsonNamesTheClassThatHasIt) {
  std::vector<TensorRow> table = llama();
  table.back() = {"score.weight", DType::bf16, {1, 4}, 0};
  using Renames = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(map(table, llama_config).edits.architectures, (Renames{{"LlamaForCausalLM", "LlamaForSequenceClassification"}}));
  table.push_back({"score.bias", DType::bf16, {1}, 0});
  EXPECT_EQ(map(table, llama_config).edits.architectures, (Renames{{"LlamaForCausalLM", "LlamaForTokenClassification"}}));
  EXPECT_EQ(map(llama(), llama_config).edits.architectures, Renames{});
  EXPECT_EQ(map(llama(), with(llama_config, R"("architectures": ["FSDPLlamaForCausalLM"])")).edits.architectures,
            (Renames{{"FSDPLlamaForCausalLM", "LlamaForCausalLM"}}));
}

TEST(Head, ABaseModelHasNoneAndNoPrefix) {
  std::vector<TensorRow> table = llama();
  erase_row(table, "lm_head.weight");
  for (TensorRow& row : table) row.name.erase(0, 6);
  const std::string config = with(llama_config, R"("architectures": ["LlamaModel"])");
  EXPECT_EQ(map(table, config).targets.targets.size(), 11U);
  erase_row(table, "norm.weight");
  EXPECT_THAT(error_of(table, config), StartsWith("norm.weight: missing"));
}

// ---- element types

TEST(DTypes, OfConfigJsonByDefaultForFloatingTensorsOnly) {
  std::vector<TensorRow> table = llama(DType::f32);
  table.push_back({"steps", DType::i64, {}, 0});
  table.push_back({"table", DType::f8_e4m3, {6, 5}, 0});
  table.push_back({"halves", DType::f16, {5}, 0});
  table.push_back({"model.layers.0.mlp.gate.e_score_correction_bias", DType::f32, {4}, 0});
  const Mapping mapping = map(table, with(llama_config, R"("model_type": "other")"));
  EXPECT_EQ(target_of(mapping, "model.norm.weight").dtype, DType::bf16);
  EXPECT_EQ(target_of(mapping, "halves").dtype, DType::bf16);
  EXPECT_EQ(target_of(mapping, "steps").dtype, DType::i64);
  EXPECT_EQ(target_of(mapping, "table").dtype, DType::f8_e4m3);
  EXPECT_EQ(target_of(mapping, "model.layers.0.mlp.gate.e_score_correction_bias").dtype, DType::f32) << "the router's correction stays";
  EXPECT_THAT(mapping.notes, ::testing::Contains("Casting 12 parameters float32 -> bfloat16"));
  EXPECT_THAT(mapping.notes, ::testing::Contains("Casting 1 parameters float16 -> bfloat16"));
  EXPECT_EQ(mapping.edits.dtype, DType::bf16);
}

TEST(DTypes, AreKeptOrGivenOnDemandAndConfigJsonSaysSo) {
  MapOptions options;
  options.dtype.kind = DTypeChoice::Kind::keep;
  Mapping mapping = map(llama(DType::f32), llama_config, options);
  EXPECT_EQ(target_of(mapping, "model.norm.weight").dtype, DType::f32);
  EXPECT_EQ(mapping.edits.dtype, DType::f32);
  EXPECT_THAT(mapping.notes, IsEmpty());
  options.dtype = {DTypeChoice::Kind::fixed, DType::f16};
  mapping = map(llama(DType::f32), llama_config, options);
  EXPECT_EQ(target_of(mapping, "model.norm.weight").dtype, DType::f16);
  EXPECT_EQ(mapping.edits.dtype, DType::f16);
}

TEST(DTypes, WithoutOneInConfigJsonStayAsStored) {
  const Mapping mapping = map({{"w", DType::f16, {8}, 0}, {"b", DType::f32, {2}, 0}}, "{}");
  EXPECT_EQ(target_of(mapping, "b").dtype, DType::f32);
  EXPECT_EQ(mapping.edits.dtype, DType::f16) << "what most elements have";
}

TEST(Quantisation, OfConfigJsonGoesWhereWeightsAreDense) {
  const std::string config = with(llama_config, R"("quantization_config": {"quant_method": "bitsandbytes"})");
  EXPECT_TRUE(map(llama(), config).edits.remove_quantization);
  std::vector<TensorRow> table = llama();
  table[1] = {"model.layers.0.self_attn.q_proj.weight", DType::u8, {8, 1}, 0};
  EXPECT_FALSE(map(table, config).edits.remove_quantization) << "packed codes; their shape is not config.json's";
}

}  // namespace
}  // namespace unshard::testing_support
