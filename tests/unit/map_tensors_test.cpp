// What map_tensors decides: names, what is missing, what is filled; on the table of a tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/tiny_llama.h"

namespace unshard::testing_support {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// ---- names

TEST(Names, PatternsThatMatchNothingAreNoted) {
  MapOptions options;
  options.drop = {"model.vision.*"};
  options.allow_missing = {"lm_haed*"};
  const std::string notes = joined(map(llama(), llama_config, options).notes);
  EXPECT_THAT(notes, HasSubstr("--drop model.vision.* matches no tensor"));
  EXPECT_THAT(notes, HasSubstr("--allow-missing lm_haed* matches no missing tensor"));
}

TEST(Names, ACustomMappingThatMatchesNothingIsNoted) {
  MapOptions options;
  options.custom_mapping_path = "names.json";
  options.custom_mapping = R"({"model.decoder.": "model.", "self_attn": "self_attn"})";
  std::string notes = joined(map(llama(), llama_config, options).notes);
  EXPECT_THAT(notes, HasSubstr("--custom-mapping: in no tensor's name: model.decoder."));
  EXPECT_EQ(notes.find("self_attn"), std::string::npos) << notes;
  options.custom_mapping = R"({"rules": [{"source": "model.norm.wieght", "target": "model.norm.weight"},
                                         {"source": "model.norm.weight", "target": "model.norm.weight"},
                                         {"sources": {"part.{t}": "r c"}, "target": "whole", "axes": "(t r) c"}]})";
  notes = joined(map(llama(), llama_config, options).notes);
  EXPECT_THAT(notes, HasSubstr("--custom-mapping: the rule for 'model.norm.wieght' matches no tensor"));
  EXPECT_THAT(notes, HasSubstr("--custom-mapping: the rule for 'whole' matches no tensor"));
  EXPECT_EQ(notes.find("'model.norm.weight'"), std::string::npos) << notes;
}

TEST(Names, ADroppedTensorIsNotToBeTakenFromElsewhere) {
  std::vector<TensorRow> table = llama();
  for (TensorRow row : llama()) {
    row.origin = 1;
    table.push_back(row);
  }
  MapOptions options;
  options.drop = {"model.norm.weight"};
  const std::string error = error_of(table, llama_config, options);
  EXPECT_THAT(error, AllOf(StartsWith("model.norm.weight: left out by --drop"), HasSubstr("allow that by --allow-missing")));
  EXPECT_EQ(error.find("fill"), std::string::npos) << error;
  options.allow_missing = {"model.norm.weight"};
  EXPECT_EQ(names_of(map(table, llama_config, options)).size(), llama().size() - 1);
}

TEST(Names, ALayerMoreThanConfigCountsIsRefusedUnlessTheInputIsAPublishedModel) {
  std::vector<TensorRow> table = llama();
  table.push_back({"model.layers.1.input_layernorm.weight", DType::bf16, {4}});
  MapOptions options;
  EXPECT_THAT(error_of(table, llama_config, options),
              AllOf(StartsWith("model.layers.1.input_layernorm.weight: in the checkpoint, but hf/config.json"), HasSubstr("--drop")));
  options.drop = {"model.layers.1.*"};
  EXPECT_EQ(names_of(map(table, llama_config, options)).size(), llama().size());
  options = {};
  options.is_published_model = true;
  EXPECT_EQ(names_of(map(table, llama_config, options)).size(), table.size());
  options = {};
  const std::string predicting = with(llama_config, R"("num_nextn_predict_layers": 1)");
  EXPECT_EQ(names_of(map(table, predicting, options)).size(), table.size());
  table.back().name = "model.layers.2.input_layernorm.weight";
  EXPECT_THAT(error_of(table, predicting, options), StartsWith("model.layers.2.input_layernorm.weight: in the checkpoint, but"));
}

TEST(Names, FillingTakesOnlyWhatConfigExpects) {
  std::vector<TensorRow> table = llama();
  erase_row(table, "model.norm.weight");
  table.push_back({"model.norm.weight", DType::bf16, {4}, 1});
  table.push_back({"model.layers.1.input_layernorm.weight", DType::bf16, {4}, 1});
  const Mapping mapping = map(table, llama_config);
  EXPECT_THAT(mapping.filled, ElementsAre("model.norm.weight"));
  EXPECT_EQ(names_of(mapping).size(), llama().size());
  EXPECT_THAT(joined(mapping.notes), HasSubstr("Not taken from --fill-missing-from: 1 tensor that hf/config.json does not expect: "
                                               "model.layers.1.input_layernorm.weight"));
}

TEST(Names, AreMissingInBothFolders) {
  std::vector<TensorRow> table = llama();
  erase_row(table, "model.norm.weight");
  table.push_back({"lm_head.weight", DType::bf16, {6, 4}, 1});
  const std::string error = error_of(table, llama_config);
  EXPECT_THAT(error, HasSubstr("neither in the checkpoint nor in --fill-missing-from"));
  EXPECT_EQ(error.find("take them from"), std::string::npos) << error;
}

TEST(Names, PublishedOnesPassInStoredOrder) {
  const Mapping mapping = map(llama(), llama_config);
  std::vector<std::string> stored;
  for (const TensorRow& row : llama()) stored.push_back(row.name);
  EXPECT_EQ(names_of(mapping), stored);
  EXPECT_EQ(target_of(mapping, "model.norm.weight").terms, std::vector<Term>{copy_of(10, {4})});
  EXPECT_THAT(mapping.notes, IsEmpty());
  EXPECT_THAT(mapping.targets.unused, IsEmpty());
}

TEST(Names, AnUnknownModelTypeIsNoObstacle) {
  const Mapping mapping = map({{"classifier.1.weight", DType::f32, {5, 10}, 0}, {"net.bn.num_batches_tracked", DType::i64, {}, 0}},
                              R"({"model_type": "resnet", "num_hidden_layers": "?"})");
  EXPECT_THAT(names_of(mapping), ElementsAre("classifier.1.weight", "net.bn.num_batches_tracked"));
  EXPECT_THAT(joined(mapping.notes), HasSubstr("No rules for model type resnet"));
}

TEST(Names, TwoThatBecomeOneAreRefusedWithBoth) {
  std::vector<TensorRow> table = llama();
  table.push_back({"_orig_mod.model.norm.weight", DType::bf16, {4}, 0});
  EXPECT_THAT(error_of(table, llama_config),
              StartsWith("model.norm.weight: two stored tensors would get this name, model.norm.weight and _orig_mod.model.norm.weight"));
  MapOptions options;
  options.drop = {"_orig_mod.*"};
  const Mapping mapping = map(table, llama_config, options);
  EXPECT_EQ(mapping.targets.targets.size(), 12U);
  ASSERT_EQ(mapping.targets.unused.size(), 1U);
  EXPECT_EQ(mapping.targets.unused[0].name, "_orig_mod.model.norm.weight");
}

TEST(Names, BuffersThatTransformersMakesAreLeftOutAndNamed) {
  std::vector<TensorRow> table = llama();
  table.push_back({"module.model.layers.0.self_attn.rotary_emb.inv_freq", DType::f32, {2}, 0});
  table.push_back({"model.layers.0.mlp._extra_state", DType::u8, {0}, 0});
  table.push_back({"model.layers.0.attn.bias", DType::boolean, {1, 1, 32, 32}, 0});
  table.push_back({"model.layers.0.attn.masked_bias", DType::f32, {}, 0});
  const Mapping mapping = map(table, llama_config);
  EXPECT_EQ(mapping.targets.targets.size(), 12U);
  EXPECT_EQ(mapping.targets.unused.size(), 4U);
  EXPECT_EQ(mapping.targets.unused[0].name, "module.model.layers.0.self_attn.rotary_emb.inv_freq");
  EXPECT_THAT(joined(mapping.notes), HasSubstr("rotary_emb.inv_freq"));
}

TEST(Names, RealBuffersAndBiasesAreKeptAndNoted) {
  std::vector<TensorRow> table = llama();
  table.push_back({"model.layers.0.attn.bias", DType::bf16, {4}, 0});
  table.push_back({"model.std_scale", DType::f32, {}, 0});
  const Mapping mapping = map(table, llama_config);
  EXPECT_EQ(target_of(mapping, "model.std_scale").shape, Shape{});
  EXPECT_THAT(joined(mapping.notes),
              HasSubstr("Passing through 2 tensors that a llama model need not have: model.layers.0.attn.bias, model.std_scale"));
}

TEST(Names, ThatNoFileCanHaveAreRefused) {
  EXPECT_THAT(error_of({{"__metadata__", DType::f32, {1}, 0}}, "{}"), HasSubstr("__metadata__"));
  EXPECT_THAT(error_of({{"", DType::f32, {1}, 0}}, "{}"), StartsWith("''"));
  EXPECT_THAT(error_of({{"a", DType::c128, {1}, 0}}, "{}", {}, ErrorCode::unsupported), StartsWith("a: element type complex128"));
  EXPECT_THAT(error_of({}, "{}"), HasSubstr("no tensor"));
}

TEST(Names, ControlCharactersAreNotPrinted) {
  std::vector<TensorRow> table = llama();
  erase_row(table, "model.norm.weight");
  table.push_back({"\x1b[31mred\n", DType::bf16, {4}, 0});
  const std::string error = error_of(table, llama_config);
  EXPECT_THAT(error, HasSubstr("\\x1b[31mred"));
  EXPECT_EQ(error.find('\x1b'), std::string::npos);
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

// ---- completeness and shapes

TEST(Missing, AnIntegerMatrixAloneDoesNotMakeAModelQuantised) {
  std::vector<TensorRow> table = llama();
  table.pop_back();
  table.push_back({"model.token_map", DType::i32, {6, 2}, 0});
  EXPECT_THAT(error_of(table, llama_config), HasSubstr("lm_head.weight"));
}

TEST(Missing, TensorsAreNamedWithWhatWasFoundInstead) {
  std::vector<TensorRow> table = llama();
  for (TensorRow& row : table) {
    if (row.name.find("down_proj") != std::string::npos) row.name = "net.down.weight";
  }
  const std::string error = error_of(table, llama_config);
  EXPECT_THAT(
      error,
      StartsWith("model.layers.0.mlp.down_proj.weight: missing, hf/config.json expects it; found but not expected: net.down.weight"));
  MapOptions options;
  options.allow_missing = {"*.down_proj.*"};
  EXPECT_EQ(map(table, llama_config, options).targets.targets.size(), 12U);
}

TEST(Missing, ALayerThatConfigJsonExpects) {
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("num_hidden_layers": 2)")), HasSubstr("model.layers.1.self_attn.q_proj.weight"));
}

TEST(Missing, NumbersThatConfigJsonLacksCheckNothing) {
  EXPECT_EQ(map(llama(), R"({"model_type": "llama", "hidden_size": 4})").targets.targets.size(), 12U);
}

TEST(Shapes, AreCheckedAgainstConfigJson) {
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("vocab_size": 8)")),
              StartsWith("model.embed_tokens.weight: shape [6, 4], but hf/config.json implies [8, 4] (vocab_size = 8, hidden_size = 4)"));
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("intermediate_size": 5)")),
              HasSubstr("mlp.gate_proj.weight: shape [3, 4], but hf/config.json implies [5, 4]"));
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("num_attention_heads": 0)")), HasSubstr("hf/config.json implies [0, 4]"));
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("head_dim": null, "num_attention_heads": 3)")),
              HasSubstr("hf/config.json: 'head_dim | hidden_size / num_attention_heads'"));
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("num_hidden_layers": 1000000000000000)")),
              StartsWith("hf/config.json: num_hidden_layers = 1000000000000000"));
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("num_hidden_layers": -1)")), StartsWith("hf/config.json: num_hidden_layers is -1"));
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("num_hidden_layers": "two")")),
              StartsWith("hf/config.json: num_hidden_layers is \"two\""));
  EXPECT_THAT(error_of(llama(), with(llama_config, R"("vocab_size": 1e300)")), StartsWith("hf/config.json: vocab_size is 1e+300"));
}

TEST(Shapes, AnOverrideReplacesTheNumber) {
  ModelConfig config = ModelConfig::parse(with(llama_config, R"("vocab_size": 8)"), "hf/config.json");
  config.override_number("vocab_size", 6);
  EXPECT_EQ(map_tensors(llama(), config, {}, TieAnswer::not_asked).targets.targets.size(), 12U);
}

// ---- filling

TEST(Fill, TakesExactlyWhatIsMissing) {
  std::vector<TensorRow> table = llama();
  erase_row(table, "model.norm.weight");
  for (TensorRow row : llama(DType::f32)) {
    row.origin = 1;
    table.push_back(row);
  }
  table.push_back({"visual.proj.weight", DType::f32, {2}, 1});
  const Mapping mapping = map(table, llama_config);
  EXPECT_THAT(mapping.filled, ElementsAre("model.norm.weight"));
  EXPECT_THAT(joined(mapping.notes),
              HasSubstr("Not taken from --fill-missing-from: 1 tensor that hf/config.json does not expect: visual.proj.weight"));
  EXPECT_EQ(mapping.targets.targets.size(), 12U);
  EXPECT_EQ(table[target_of(mapping, "model.norm.weight").terms[0].source].origin, 1);
  EXPECT_EQ(target_of(mapping, "model.norm.weight").dtype, DType::bf16);
}

TEST(Fill, NeverAddsAHeadToATiedModel) {
  std::vector<TensorRow> table = llama();
  table.back().origin = 1;
  EXPECT_FALSE(tie_question(table, ModelConfig::parse(tied_config, "c"), {}));
  EXPECT_EQ(map(table, tied_config).targets.targets.size(), 11U);
}

}  // namespace
}  // namespace unshard::testing_support
