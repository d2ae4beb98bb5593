// config.json: looked up, and edited without touching anything else.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

std::string error_of(const std::string& text) {
  try {
    static_cast<void>(ModelConfig::parse(text, "some/config.json"));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    return error.what();
  }
  return "";
}

TEST(ModelConfig, LooksInTheLanguageModelsConfiguration) {
  const ModelConfig config = ModelConfig::parse(R"({"model_type": "qwen3_vl", "architectures": ["A", 3], "tie_word_embeddings": false,
    "text_config": {"hidden_size": 16, "tie_word_embeddings": true, "mlp_only_layers": [1, 3], "n_inner": null, "model_type": "qwen3_vl_text"},
    "vision_config": {"hidden_size": 99, "depth": 2}})",
                                                "config.json");
  EXPECT_EQ(config.model_type(), "qwen3_vl");
  EXPECT_EQ(config.architectures(), std::vector<std::string>{"A"});
  EXPECT_EQ(config.number("hidden_size"), 16U);
  EXPECT_EQ(config.number("vision_config.depth"), 2U);
  EXPECT_EQ(config.number("n_inner"), std::nullopt);
  EXPECT_EQ(config.number("depth"), std::nullopt);
  EXPECT_EQ(config.flag("tie_word_embeddings"), false);
  EXPECT_EQ(config.numbers("mlp_only_layers"), (std::vector<std::uint64_t>{1, 3}));
  EXPECT_EQ(config.text("text_config.model_type"), "qwen3_vl_text");
}

TEST(ModelConfig, LooksTwoLevelsDeepForOmniModels) {
  const ModelConfig config = ModelConfig::parse(R"({"thinker_config": {"text_config": {"num_hidden_layers": 36}}})", "config.json");
  EXPECT_EQ(config.number("num_hidden_layers"), 36U);
}

TEST(ModelConfig, AnOverrideComesFirst) {
  ModelConfig config =
      ModelConfig::parse(R"({"num_attention_heads": 4, "text_config": {"a": 1}, "vision_config": {"a": 2}})", "config.json");
  config.override_number("num_attention_heads", 8);
  config.override_number("a", 3);
  EXPECT_EQ(ModelConfig(config).number("num_attention_heads"), 8U);
  EXPECT_EQ(config.number("text_config.a"), 3U);
  EXPECT_EQ(config.number("vision_config.a"), 2U);
}

TEST(ModelConfig, TypeOfElements) {
  EXPECT_EQ(ModelConfig::parse(R"({"torch_dtype": "bfloat16"})", "c").dtype(), DType::bf16);
  EXPECT_EQ(ModelConfig::parse(R"({"dtype": "float16", "torch_dtype": "bfloat16"})", "c").dtype(), DType::f16);
  EXPECT_EQ(ModelConfig::parse(R"({"torch_dtype": "torch.float32"})", "c").dtype(), DType::f32);
  EXPECT_EQ(ModelConfig::parse(R"({"dtype": null, "text_config": {"dtype": "bfloat16"}})", "c").dtype(), DType::bf16);
  EXPECT_EQ(ModelConfig::parse("{}", "c").dtype(), std::nullopt);
}

TEST(ModelConfig, WhatIsNoConfigIsRefusedByPath) {
  for (const std::string& text : {std::string(), std::string("{"), std::string("[1]"), std::string("7"), std::string("{\"a\": 1e999}"),
                                  std::string("{\"a\": \"\xff\"}"), std::string("{} {}"), std::string("{'a': 1}"),
                                  std::string("{\"a\": 1,}"), std::string(60000, '['), std::string(1 << 20, '{')}) {
    EXPECT_EQ(error_of(text).find("some/config.json: "), 0U) << text.substr(0, 40);
  }
  EXPECT_NE(error_of(std::string(60000, '[')).find("100 levels"), std::string::npos);
}

TEST(ModelConfig, ImpossibleNumbersAreNamed) {
  const ModelConfig config = ModelConfig::parse(R"({"a": -1, "b": "two", "c": 1e300, "d": 2.5, "e": [1], "f": true})", "x/config.json");
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) {
    try {
      static_cast<void>(config.number(key));
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find(std::string("x/config.json: ") + key + " is "), 0U) << error.what();
    }
  }
}

constexpr const char* typical = R"({
  "architectures": [
    "Qwen2ForCausalLM"
  ],
  "eps": 1e-05,
  "quantization_config": {
    "quant_method": "fp8",
    "dtype": "float8"
  },
  "text_config": {"dtype": "float32", "unknown key": "\u00e9\"}", "vocab_size": 50},
  "theta": 1000000.0,
  "torch_dtype": "float32",
  "vision_config": {"vocab_size": 7}
}
)";

TEST(Edits, NothingAskedNothingChanged) {
  EXPECT_EQ(ModelConfig::parse(typical, "c").edited({}), typical);
}

TEST(Edits, ReplaceValuesWhereTheyStand) {
  ModelConfig::Edits edits;
  edits.dtype = DType::bf16;
  edits.vocab_size = 64;
  edits.remove_quantization = true;
  edits.tie_word_embeddings = false;
  EXPECT_EQ(ModelConfig::parse(typical, "c").edited(edits), R"({
  "architectures": [
    "Qwen2ForCausalLM"
  ],
  "eps": 1e-05,
  "text_config": {"dtype": "bfloat16", "unknown key": "\u00e9\"}", "vocab_size": 64},
  "theta": 1000000.0,
  "torch_dtype": "bfloat16",
  "vision_config": {"vocab_size": 7},
  "tie_word_embeddings": false
}
)");
}

TEST(Edits, AddTorchDtypeWhereThereIsNoDtype) {
  ModelConfig::Edits edits;
  edits.dtype = DType::f16;
  EXPECT_EQ(ModelConfig::parse(R"({"a": 1})", "c").edited(edits), R"({"a": 1,"torch_dtype": "float16"})");
  EXPECT_EQ(ModelConfig::parse("{}", "c").edited(edits), R"({"torch_dtype": "float16"})");
  EXPECT_EQ(ModelConfig::parse(R"({"dtype": null})", "c").edited(edits), R"({"dtype": "float16"})");
}

TEST(Edits, NumbersThatWereGivenInsteadAreWritten) {
  ModelConfig config =
      ModelConfig::parse(R"({"vocab_size": 50, "text_config": {"vocab_size": 50}, "vision_config": {"vocab_size": 7}})", "c");
  config.override_number("vocab_size", 60);
  config.override_number("head_dim", 4);
  EXPECT_EQ(config.edited({}),
            R"({"vocab_size": 60, "text_config": {"vocab_size": 60}, "vision_config": {"vocab_size": 7}, "head_dim": 4})");
}

TEST(Edits, RenameClasses) {
  ModelConfig::Edits edits;
  edits.architectures = {{"FSDPA", "A"}, {"absent", "x"}};
  EXPECT_EQ(ModelConfig::parse(R"({"a": "FSDPA", "architectures": ["B", "FSDPA"], "b": "FSDPA"})", "c").edited(edits),
            R"({"a": "FSDPA", "architectures": ["B", "A"], "b": "FSDPA"})");
}

TEST(Edits, RemoveQuantizationWhereverItStands) {
  ModelConfig::Edits edits;
  edits.remove_quantization = true;
  EXPECT_EQ(ModelConfig::parse(R"({"quantization_config": {"a": [1, {"b": 2}]}, "x": 1})", "c").edited(edits), R"({"x": 1})");
  EXPECT_EQ(ModelConfig::parse(R"({"quantization_config": null})", "c").edited(edits), "{}");
  EXPECT_EQ(ModelConfig::parse(R"({"x": {"quantization_config": 1}, "quantization_config": 1, "quantization_config": 2, "y": 3})", "c")
                .edited(edits),
            R"({"x": {"quantization_config": 1}, "y": 3})");
  EXPECT_EQ(ModelConfig::parse(R"({"text_config": {"x": 1, "quantization_config": {}}})", "c").edited(edits),
            R"({"text_config": {"x": 1}})");
}

TEST(Edits, AByteOrderMarkGoesAndTheLastOfDuplicatesCounts) {
  const ModelConfig config = ModelConfig::parse("\xEF\xBB\xBF{\"hidden_size\": 1, \"hidden_size\": 2}", "c");
  EXPECT_EQ(config.number("hidden_size"), 2U);
  EXPECT_EQ(config.edited({}), "{\"hidden_size\": 1, \"hidden_size\": 2}");
  ModelConfig::Edits edits;
  edits.vocab_size = 3;
  EXPECT_EQ(ModelConfig::parse(R"({"vocab_size": 1, "vocab_size": 2})", "c").edited(edits), R"({"vocab_size": 3, "vocab_size": 3})");
}

// The real files of the cases: an edit changes the line of its key and no other.
TEST(Edits, OfARealFileChangeOneLine) {
  std::ifstream file(std::string(UNSHARD_CASES) + "/fsdp/qwen3_vl/input/huggingface/config.json");
  std::stringstream text;
  text << file.rdbuf();
  ModelConfig::Edits edits;
  edits.tie_word_embeddings = true;
  std::string expected = text.str();
  const std::string key = "\"tie_word_embeddings\": ";
  const std::size_t at = expected.find(key);
  ASSERT_NE(at, std::string::npos);
  expected.replace(at, key.size() + 5, key + "true");
  EXPECT_EQ(ModelConfig::parse(text.str(), "c").edited(edits), expected);
}

}  // namespace
}  // namespace unshard
