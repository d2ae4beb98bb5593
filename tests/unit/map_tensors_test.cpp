// What map_tensors decides: names, ties, element types, what is missing; on the table of a tiny model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "support/gather.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* llama_config =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "tie_word_embeddings": false, "vocab_size": 6,
  "hidden_size": 4, "intermediate_size": 3, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2})";

/// `config` with one more key, which then counts.
std::string with(std::string config, const std::string& member) {
  return config.insert(config.size() - 1, ", " + member);
}

std::vector<TensorRow> llama(DType dtype = DType::bf16) {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", dtype, {6, 4}, 0},
          {layer + "self_attn.q_proj.weight", dtype, {4, 4}, 0},
          {layer + "self_attn.k_proj.weight", dtype, {2, 4}, 0},
          {layer + "self_attn.v_proj.weight", dtype, {2, 4}, 0},
          {layer + "self_attn.o_proj.weight", dtype, {4, 4}, 0},
          {layer + "mlp.gate_proj.weight", dtype, {3, 4}, 0},
          {layer + "mlp.up_proj.weight", dtype, {3, 4}, 0},
          {layer + "mlp.down_proj.weight", dtype, {4, 3}, 0},
          {layer + "input_layernorm.weight", dtype, {4}, 0},
          {layer + "post_attention_layernorm.weight", dtype, {4}, 0},
          {"model.norm.weight", dtype, {4}, 0},
          {"lm_head.weight", dtype, {6, 4}, 0}};
}

Mapping map(const std::vector<TensorRow>& table, const std::string& config, const MapOptions& options = {},
            TieAnswer tie = TieAnswer::not_asked) {
  return map_tensors(table, ModelConfig::parse(config, "hf/config.json"), options, tie);
}

std::string error_of(const std::vector<TensorRow>& table, const std::string& config, const MapOptions& options = {},
                     ErrorCode code = ErrorCode::bad_input, TieAnswer tie = TieAnswer::not_asked) {
  try {
    static_cast<void>(map(table, config, options, tie));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::vector<std::string> names_of(const Mapping& mapping) {
  std::vector<std::string> names;
  for (const Target& target : mapping.targets.targets) names.push_back(target.name);
  return names;
}

const Target& target_of(const Mapping& mapping, const std::string& name) {
  const auto& targets = mapping.targets.targets;
  const auto found = std::find_if(targets.begin(), targets.end(), [&](const Target& target) { return target.name == name; });
  if (found == targets.end()) throw std::logic_error("no target " + name);
  return *found;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

void erase_row(std::vector<TensorRow>& table, const std::string& name) {
  std::erase_if(table, [&](const TensorRow& row) { return row.name == name; });
}

// ---- names

TEST(Names, PatternsThatMatchNothingAreNoted) {
  MapOptions options;
  options.drop = {"model.vision.*"};
  options.allow_missing = {"lm_haed*"};
  const std::string notes = joined(map(llama(), llama_config, options).notes);
  EXPECT_THAT(notes, HasSubstr("--drop model.vision.* matches no tensor"));
  EXPECT_THAT(notes, HasSubstr("--allow-missing lm_haed* matches no missing tensor"));
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

// ---- ties

const std::string tied_config = with(llama_config, R"("tie_word_embeddings": true)");

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
  EXPECT_THAT(mapping.notes, testing::Contains("Casting 12 parameters float32 -> bfloat16"));
  EXPECT_THAT(mapping.notes, testing::Contains("Casting 1 parameters float16 -> bfloat16"));
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
  EXPECT_THAT(joined(mapping.notes), HasSubstr("Not taken from --fill-missing-from: 1 tensor that hf/config.json does not expect: visual.proj.weight"));
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
              testing::AllOf(HasSubstr("q_proj.lora_A.default.weight"), HasSubstr("--lora drop")));
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
  std::vector<testing_support::Numbers> stored(table.size());
  stored[5] = testing_support::counted({4, 6});
  EXPECT_THAT(testing_support::gathered(target_of(mapping, "model.layers.0.mlp.up_proj.weight"), stored),
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
  EXPECT_THAT(
      testing_support::gathered(mapping.targets.targets[0], {testing_support::counted({1, 2}, 2), testing_support::counted({1, 2})}),
      ElementsAre(0, 1, 2, 3));
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
              testing::AllOf(HasSubstr("out_mix"), HasSubstr("--custom-mapping"), HasSubstr("--drop")));
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
  std::vector<testing_support::Numbers> stored;
  for (const TensorRow& row : single_rows(DType::bf16)) stored.push_back(testing_support::counted(row.shape, stored.size() * 2));
  // gate 0 = 0 1, up 0 = 2 3, down 0 = 4 5, gate 1 = 6 7, up 1 = 8 9, down 1 = 10 11
  EXPECT_THAT(testing_support::gathered(target_of(mapping, "model.layers.0.mlp.experts.gate_up_proj"), stored),
              ElementsAre(0, 1, 2, 3, 6, 7, 8, 9));
  EXPECT_THAT(testing_support::gathered(target_of(mapping, "model.layers.0.mlp.experts.down_proj"), stored), ElementsAre(4, 5, 10, 11));
}

TEST(Like, FusedStayFusedAndFusedBecomeOneByOne) {
  EXPECT_THAT(names_of(map(fused_rows, moe_config, like(fused_rows))),
              ElementsAre("model.layers.0.mlp.experts.down_proj", "model.layers.0.mlp.experts.gate_up_proj"));
  const Mapping mapping = map(fused_rows, moe_config, like(single_rows(DType::f32)));
  EXPECT_EQ(mapping.targets.targets.size(), 6U);
  EXPECT_EQ(mapping.targets.targets[0].dtype, DType::f32) << "types follow too";
  EXPECT_THAT(testing_support::gathered(target_of(mapping, "model.layers.0.mlp.experts.1.up_proj.weight"),
                                        {testing_support::counted({2, 2, 2}), {}}),
              ElementsAre(6, 7));
}

TEST(Like, AStackThatStaysFusedHasTheStoredElements) {
  const Mapping mapping = map(fused_rows, moe_config, like(fused_rows));
  EXPECT_THAT(
      testing_support::gathered(target_of(mapping, "model.layers.0.mlp.experts.gate_up_proj"), {testing_support::counted({2, 2, 2}), {}}),
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
  EXPECT_THAT(testing_support::gathered(mapping.targets.targets.at(0), {testing_support::counted({1, 2, 3})}),
              ElementsAre(0, 3, 1, 4, 2, 5));
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

// A model of 671B parameters has 46,000 tensors one by one; mapping is done on every rank and must not be felt.
TEST(Size, FortySixThousandTensorsAreMappedSoon) {
  std::string config =
      R"({"model_type": "qwen3_moe", "dtype": "bfloat16", "hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 256, "num_hidden_layers": 60,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 100, "decoder_sparse_step": 1})";
  std::vector<TensorRow> table{{"model.embed_tokens.weight", DType::bf16, {100, 64}, 0},
                               {"model.norm.weight", DType::bf16, {64}, 0},
                               {"lm_head.weight", DType::bf16, {100, 64}, 0}};
  for (int l = 0; l < 60; ++l) {
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
  const std::clock_t begin = std::clock();
  const Mapping mapping = map(table, config);
  EXPECT_EQ(mapping.targets.targets.size(), 3U + 60 * (9 + 768));
  std::vector<TensorRow> singles;
  for (const Target& target : mapping.targets.targets) singles.push_back({target.name, target.dtype, target.shape, 0});
  EXPECT_EQ(map(singles, config).targets.targets.size(), singles.size());
  EXPECT_EQ(map(singles, config, like(table)).targets.targets.size(), table.size());
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 60.0) << "three mappings, even under a sanitizer";
}

}  // namespace
}  // namespace unshard
