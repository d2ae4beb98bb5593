// What an adapter is by its names and its config, and what folding it adds to which tensor.
#include "unshard/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lora_modules.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <class Work>
std::string error_of(Work&& work, ErrorCode code) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TensorRow row(const std::string& name, const Shape& shape) {
  return {name, DType::f32, shape, 0};
}

std::vector<Adapter> found(const std::vector<TensorRow>& table, bool only_adapters = true) {
  return find_adapters(table, 0, static_cast<TensorId>(table.size()), only_adapters);
}

TEST(AdapterNames, PairsAreFoundUnderEveryWrapper) {
  for (const std::string prefix :
       {"base_model.model.", "base_model.model.base_model.model.", "base_model.model._orig_mod.", "module.base_model.model."}) {
    const auto adapters = found({row(prefix + "model.q.lora_B.weight", {6, 2}), row(prefix + "model.q.lora_A.weight", {2, 4})});
    ASSERT_EQ(adapters.size(), 1U);
    ASSERT_EQ(adapters[0].pairs.size(), 1U);
    EXPECT_EQ(adapters[0].pairs[0].module, "model.q");
    EXPECT_EQ(adapters[0].pairs[0].a, 1U);
    EXPECT_EQ(adapters[0].pairs[0].b, 0U);
    EXPECT_EQ(adapters[0].pairs[0].rank, 2U);
  }
}

TEST(AdapterNames, TrainingShardsHoldAdaptersByNameAndBaseWeights) {
  const std::string q = "base_model.model.model.q.";
  const auto adapters = found(
      {row(q + "base_layer.weight", {6, 4}), row(q + "lora_A.default.weight", {2, 4}), row(q + "lora_B.default.weight", {6, 2}),
       row(q + "lora_A.other.weight", {3, 4}), row(q + "lora_B.other.weight", {6, 3}), row(q + "lora_magnitude_vector.other.weight", {6}),
       row("base_model.model.norm.original_module.weight", {4}), row("base_model.model.norm.modules_to_save.default.weight", {4}),
       row("base_model.model.embed.token_adapter.trainable_tokens_delta.default", {2, 4})},
      false);
  ASSERT_EQ(adapters.size(), 2U);
  EXPECT_EQ(adapters[0].name, "default");
  EXPECT_EQ(adapters[0].pairs.size(), 1U);
  ASSERT_EQ(adapters[0].replacements.size(), 1U);
  EXPECT_EQ(adapters[0].replacements[0].name, "norm.weight");
  ASSERT_EQ(adapters[0].token_rows.size(), 1U);
  EXPECT_EQ(adapters[0].token_rows[0].name, "embed.weight");
  EXPECT_EQ(adapters[1].name, "other");
  EXPECT_EQ(adapters[1].pairs[0].rank, 3U);
  EXPECT_EQ(adapters[1].pairs[0].magnitude, 5U);
}

TEST(AdapterNames, NestedPairsHaveADepthAndPlainNamesAreReplacements) {
  const auto adapters =
      found({row("base_model.model.e.base_layer.lora_A.weight", {8, 4}), row("base_model.model.e.base_layer.lora_B.weight", {6, 8}),
             row("base_model.model.e.lora_A.weight", {8, 3}), row("base_model.model.e.lora_B.weight", {4, 8}),
             row("base_model.model.embed.lora_embedding_A", {2, 9}), row("base_model.model.embed.lora_embedding_B", {4, 2}),
             row("base_model.model.embed.base_layer.weight", {9, 4}), row("base_model.model.q.base_layer.bias", {4})});
  ASSERT_EQ(adapters.size(), 1U);
  ASSERT_EQ(adapters[0].pairs.size(), 3U);
  EXPECT_EQ(adapters[0].pairs[0].depth, 0U);
  EXPECT_EQ(adapters[0].pairs[0].a, 2U);
  EXPECT_EQ(adapters[0].pairs[1].depth, 1U);
  EXPECT_TRUE(adapters[0].pairs[2].embedding);
  ASSERT_EQ(adapters[0].replacements.size(), 2U);
  EXPECT_EQ(adapters[0].replacements[0].name, "embed.weight");
  EXPECT_EQ(adapters[0].replacements[1].name, "q.bias");
}

TEST(AdapterNames, WhatMakesNoAdapterIsRefusedByName) {
  const auto refused = [](const std::vector<TensorRow>& table, ErrorCode code = ErrorCode::bad_input) {
    return error_of([&] { (void)found(table); }, code);
  };
  EXPECT_THAT(refused({row("q.lora_A.weight", {2, 4})}), AllOf(HasSubstr("q.lora_A.weight"), HasSubstr("lora_B")));
  EXPECT_THAT(refused({row("q.lora_A.weight", {2, 4}), row("q.lora_B.weight", {6, 3})}), HasSubstr("different ranks"));
  EXPECT_THAT(refused({row("q.lora_A.weight", {0}), row("q.lora_B.weight", {6, 2})}), HasSubstr("ZeRO-3"));
  EXPECT_THAT(refused({row("q.lora_A.one.weight", {2, 4}), row("q.lora_B.one.weight", {6, 2}), row("q.lora_A.two.weight", {2, 4}),
                       row("q.lora_B.two.weight", {6, 2})}),
              HasSubstr("twice"));
  EXPECT_THAT(refused({row("c.lora_A.weight", {2, 4, 3, 3}), row("c.lora_B.weight", {6, 2, 1, 1})}, ErrorCode::unsupported),
              HasSubstr("convolution"));
  EXPECT_THAT(refused({row("q.lora_diag.weight", {2})}, ErrorCode::unsupported), HasSubstr("lora_diag"));
}

double scale(const std::string& json, const std::string& module, std::uint64_t rank) {
  return scale_of(parse_adapter_config(json, "a.json"), module, rank);
}

TEST(AdapterConfigText, ScalesFollowPatternsInTheOrderOfTheFile) {
  EXPECT_DOUBLE_EQ(scale(R"({"r": 4, "lora_alpha": 8})", "model.q_proj", 4), 2);
  EXPECT_DOUBLE_EQ(scale(R"({"r": 4, "lora_alpha": 8, "use_rslora": true})", "q", 16), 2);
  const std::string patterns = R"({"lora_alpha": 8, "alpha_pattern": {"v_proj": 4, ".*\\.0\\.mlp\\..*": 12, "layers.0.mlp.up": 16}})";
  EXPECT_DOUBLE_EQ(scale(patterns, "model.layers.3.v_proj", 4), 1);
  EXPECT_DOUBLE_EQ(scale(patterns, "model.layers.0.mlp.up", 4), 3);
  EXPECT_DOUBLE_EQ(scale(patterns, "model.layers.1.mlp.up", 4), 2);
  EXPECT_DOUBLE_EQ(scale(patterns, "my_v_proj", 4), 2);
}

TEST(AdapterConfigText, WhatCantBeFoldedIsRefusedByName) {
  for (const auto& [json, word] :
       {std::pair(R"({"peft_type": "LOHA"})", "LOHA"), std::pair(R"({"init_lora_weights": "pissa_niter_4"})", "pissa"),
        std::pair(R"({"alora_invocation_tokens": [1]})", "alora"), std::pair(R"({"use_qalora": true})", "use_qalora"),
        std::pair(R"({"kasa_config": {"a": 1}})", "kasa"), std::pair(R"({"layer_replication": [[0, 2]]})", "layer_replication")}) {
    EXPECT_THAT(error_of([&] { (void)parse_adapter_config(json, "a.json"); }, ErrorCode::unsupported), HasSubstr(word));
  }
  EXPECT_NO_THROW(
      (void)parse_adapter_config(R"({"peft_type": "LORA", "init_lora_weights": "gaussian", "megatron_config": null})", "a.json"));
  for (const char* wrong : {"", "[]", R"({"r": "four"})", R"({"lora_alpha": "x"})", R"({"use_dora": 3})", R"({"rank_pattern": [1]})"})
    EXPECT_THAT(error_of([&] { (void)parse_adapter_config(wrong, "a.json"); }, ErrorCode::bad_input), HasSubstr("a.json"));
  EXPECT_THAT(error_of([] { (void)scale(R"({"alpha_pattern": {"q(": 3}})", "q", 2); }, ErrorCode::bad_input),
              HasSubstr("regular expression"));
}

TEST(AdapterConfigText, AnAlphaThatIsZeroOrUnknownIsNeverUsed) {
  EXPECT_THAT(error_of([] { (void)scale(R"({"lora_alpha": 0})", "q", 4); }, ErrorCode::bad_input), HasSubstr("lora_alpha is 0"));
  EXPECT_THAT(error_of([] { (void)scale_of({}, "q", 4); }, ErrorCode::bad_input), HasSubstr("--lora-alpha"));
}

// ---- folding

constexpr const char* config_json = R"({"model_type": "nobody", "tie_word_embeddings": false})";

struct Folding {
  std::vector<TensorRow> table;
  MapOptions options;

  /// The tensors of a base model, then those of an adapter's file.
  Folding(std::vector<TensorRow> base, const std::vector<TensorRow>& adapter, const std::string& config = R"({"r": 2, "lora_alpha": 4})")
      : table(std::move(base)) {
    const auto first = static_cast<TensorId>(table.size());
    table.insert(table.end(), adapter.begin(), adapter.end());
    options.lora.what = LoraChoice::What::fold;
    options.lora.adapters.push_back({"adapter", find_adapters(table, first, static_cast<TensorId>(table.size()), true).at(0),
                                     parse_adapter_config(config, "a.json"), 1});
  }
  [[nodiscard]] Mapping map(const std::string& config = config_json) const {
    return map_tensors(table, ModelConfig::parse(config, "config.json"), options, TieAnswer::not_asked);
  }
};

const Target& target_of(const Mapping& mapping, const std::string& name) {
  const auto& targets = mapping.targets.targets;
  return *std::find_if(targets.begin(), targets.end(), [&](const Target& target) { return target.name == name; });
}

std::vector<TensorRow> pair(const std::string& module, std::uint64_t out, std::uint64_t in, std::uint64_t rank = 2) {
  return {row("base_model.model." + module + ".lora_A.weight", {rank, in}),
          row("base_model.model." + module + ".lora_B.weight", {out, rank})};
}

TEST(Fold, AddsTheProductToItsModuleOnly) {
  const Mapping mapping = Folding({row("m.q.weight", {6, 4}), row("m.k.weight", {6, 4})}, pair("m.q", 6, 4)).map();
  ASSERT_EQ(mapping.targets.targets.size(), 2U);
  ASSERT_TRUE(target_of(mapping, "m.q.weight").computation);
  EXPECT_FALSE(target_of(mapping, "m.k.weight").computation);
  const Addend& addend = target_of(mapping, "m.q.weight").computation->addends.at(0);
  EXPECT_DOUBLE_EQ(addend.scale, 2);
  EXPECT_EQ(addend.left.term.source, 3U);
  EXPECT_EQ(addend.right->term.source, 2U);
}

TEST(Fold, FollowsAnotherPrefixWhereAllModulesFit) {
  std::vector<TensorRow> base{row("model.layers.0.a.q.weight", {6, 4}), row("model.layers.1.a.q.weight", {6, 4}),
                              row("vision.layers.0.b.q.weight", {6, 4})};
  std::vector<TensorRow> adapter = pair("layers.0.a.q", 6, 4);
  for (TensorRow& one : pair("layers.1.a.q", 6, 4)) adapter.push_back(one);
  EXPECT_TRUE(target_of(Folding(base, adapter).map(), "model.layers.1.a.q.weight").computation);
  base.push_back(row("other.layers.0.a.q.weight", {6, 4}));  // two places for one module, but only one for all
  EXPECT_TRUE(target_of(Folding(base, adapter).map(), "model.layers.0.a.q.weight").computation);
  base.push_back(row("other.layers.1.a.q.weight", {6, 4}));
  EXPECT_THAT(error_of([&] { (void)Folding(base, adapter).map(); }, ErrorCode::bad_input), HasSubstr("0 of 2"));
}

TEST(Fold, ModulesThatAreNotThereAreNamedWithTheNearest) {
  std::vector<TensorRow> adapter = pair("m.q", 6, 4);
  for (TensorRow& one : pair("m.query_key_value", 6, 4)) adapter.push_back(one);
  EXPECT_THAT(error_of(
                  [&] {
                    (void)Folding({row("m.q.weight", {6, 4}), row("m.key_value.weight", {6, 4})}, adapter).map();
                  },
                  ErrorCode::bad_input),
              AllOf(HasSubstr("1 of 2"), HasSubstr("m.query_key_value"), HasSubstr("m.key_value.weight")));
  EXPECT_THAT(error_of(
                  [&] {
                    (void)Folding({row("m.q.weight", {6, 5})}, pair("m.q", 6, 4)).map();
                  },
                  ErrorCode::bad_input),
              AllOf(HasSubstr("[6, 4]"), HasSubstr("[6, 5]")));
}

TEST(Fold, TransposesWhereTheBaseDoes) {
  const Mapping mapping = Folding({row("m.c.weight", {4, 6}), row("m.s.weight", {4, 4})},
                                  [] {
                                    std::vector<TensorRow> adapter = pair("m.c", 6, 4);
                                    for (TensorRow& one : pair("m.s", 4, 4)) adapter.push_back(one);
                                    return adapter;
                                  }())
                              .map();
  for (const char* name : {"m.c.weight", "m.s.weight"}) {  // the square one as the other
    const Addend& addend = target_of(mapping, name).computation->addends.at(0);
    EXPECT_EQ(addend.left.rows, 4U);
    EXPECT_EQ(addend.left.term.axes.at(0).source_dim, 1);  // A, transposed
  }
  EXPECT_EQ(target_of(Folding({row("m.s.weight", {4, 4})}, pair("m.s", 4, 4)).map(), "m.s.weight")
                .computation->addends.at(0)
                .left.term.axes.at(0)
                .source_dim,
            0);
}

TEST(Fold, OfASquareWeightFollowsTheConfigWhereNoOtherShapeTells) {
  const std::string inputs_first = R"({"r": 2, "lora_alpha": 4, "fan_in_fan_out": true})";
  const Mapping mapping = Folding({row("m.s.weight", {4, 4})}, pair("m.s", 4, 4), inputs_first).map();
  EXPECT_EQ(target_of(mapping, "m.s.weight").computation->addends.at(0).left.term.axes.at(0).source_dim, 1);
  std::vector<TensorRow> adapter = pair("m.s", 4, 4);
  for (TensorRow& one : pair("m.linear", 6, 4)) adapter.push_back(one);
  EXPECT_THAT(error_of(
                  [&] {
                    (void)Folding({row("m.s.weight", {4, 4}), row("m.linear.weight", {6, 4})}, adapter, inputs_first).map();
                  },
                  ErrorCode::unsupported),
              HasSubstr("m.s.weight"));
}

TEST(Fold, OfASquareWeightOfAKnownFamilyIsThatOfALinearLayerWhateverTheConfigSays) {
  const std::vector<TensorRow> table{row("model.layers.0.self_attn.q_proj.weight", {4, 4})};
  for (const auto& [type, transposed] : {std::pair("llama", false), std::pair("nobody", true)}) {
    const MapContext context =
        make_context(table, ModelConfig::parse(R"({"model_type": ")" + std::string(type) + R"("})", "config.json"), MapOptions{});
    ModuleNames names(context);
    names.squares = ModuleNames::Squares::transposed;
    EXPECT_EQ(names.is_transposed(table[0].name, 0, {4, 4}), transposed) << type;
  }
}

TEST(Fold, OfAModuleInPiecesIsRefusedForDora) {
  std::vector<TensorRow> adapter = pair("m.qk", 6, 4);
  Folding plain({row("m.q.weight", {3, 4}), row("m.k.weight", {3, 4})}, adapter);
  adapter.push_back(row("base_model.model.m.qk.lora_magnitude_vector", {6}));
  Folding dora({row("m.q.weight", {3, 4}), row("m.k.weight", {3, 4})}, adapter);
  for (Folding* one : {&plain, &dora}) {
    one->options.custom_mapping =
        R"({"rules": [{"source": "m.qk.weight", "axes": "(p=2 o) i", "targets": {"m.q.weight": "p=0: o i", "m.k.weight": "p=1: o i"}}]})";
    one->options.custom_mapping_path = "mapping.json";
  }
  EXPECT_TRUE(target_of(plain.map(), "m.k.weight").computation);
  EXPECT_THAT(error_of([&] { (void)dora.map(); }, ErrorCode::unsupported), AllOf(HasSubstr("DoRA"), HasSubstr("m.qk.weight")));
}

TEST(Fold, WholeModulesAndTokenRowsReplaceThoseOfTheBase) {
  std::vector<TensorRow> adapter = pair("m.q", 6, 4);
  adapter.push_back(row("base_model.model.m.norm.weight", {4}));
  adapter.push_back(row("base_model.model.m.e.token_adapter.trainable_tokens_delta", {2, 4}));
  const Mapping mapping = Folding({row("m.q.weight", {6, 4}), row("m.norm.weight", {4}), row("m.e.weight", {9, 4})}, adapter,
                                  R"({"r": 2, "lora_alpha": 4, "trainable_token_indices": {"e": [5, 2]}})")
                              .map();
  EXPECT_EQ(target_of(mapping, "m.norm.weight").terms.at(0).source, 5U);
  const std::vector<Term>& rows = target_of(mapping, "m.e.weight").terms;
  ASSERT_EQ(rows.size(), 5U);  // 0-1, 2, 3-4, 5, 6-8
  EXPECT_EQ(rows[1].source, 6U);
  EXPECT_EQ(rows[1].source_start[0], 1U);
  EXPECT_EQ(rows[3].source_start[0], 0U);
  EXPECT_EQ(rows[3].target_start[0], 5U);
}

constexpr const char* tied_llama =
    R"({"model_type": "llama", "tie_word_embeddings": true, "vocab_size": 6, "hidden_size": 4, "intermediate_size": 3,
  "num_hidden_layers": 0, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2})";

TEST(Fold, TiedTensorsOfWhichOneChangesAreBothWritten) {
  const std::vector<TensorRow> base{row("model.embed_tokens.weight", {6, 4}), row("model.norm.weight", {4})};
  const Mapping embedding = Folding(base, {row("base_model.model.model.embed_tokens.lora_embedding_A", {2, 6}),
                                           row("base_model.model.model.embed_tokens.lora_embedding_B", {4, 2})})
                                .map(tied_llama);
  EXPECT_EQ(embedding.edits.tie_word_embeddings, false);
  EXPECT_TRUE(target_of(embedding, "model.embed_tokens.weight").computation);
  EXPECT_FALSE(target_of(embedding, "lm_head.weight").computation);
  EXPECT_EQ(target_of(embedding, "lm_head.weight").terms.at(0).source, 0U);
  const Mapping head = Folding(base, pair("lm_head", 6, 4)).map(tied_llama);
  EXPECT_EQ(head.edits.tie_word_embeddings, false);
  EXPECT_FALSE(target_of(head, "model.embed_tokens.weight").computation);
  EXPECT_TRUE(target_of(head, "lm_head.weight").computation);
}

}  // namespace
}  // namespace unshard
