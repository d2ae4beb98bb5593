// Names of wrappers and adapters, globs, the order of names.
#include "names.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unshard/mapping.h"

namespace unshard {
namespace {

TEST(Wrappers, GoAtAnyDepth) {
  EXPECT_EQ(
      without_wrappers("module._fsdp_wrapped_module._orig_mod.model.layers.0._checkpoint_wrapped_module.self_attn._orig_mod.q_proj.weight"),
      "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(without_wrappers("_fsdp_wrapped_module._fpw_module.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(without_wrappers("_forward_module.module.model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(without_wrappers("model.layers.0._orig_mod.module.mlp.up_proj.weight"), "model.layers.0.mlp.up_proj.weight");
}

TEST(Wrappers, AModelsOwnModuleStays) {
  EXPECT_EQ(without_wrappers("model.module.weight"), "model.module.weight");
  EXPECT_EQ(without_wrappers("encoder.module.0.weight"), "encoder.module.0.weight");
  EXPECT_EQ(without_wrappers("model.my_orig_mod.weight"), "model.my_orig_mod.weight");
}

TEST(Wrappers, ANameOfWrappersOnlyKeepsItsEnd) {
  EXPECT_EQ(without_wrappers("module"), "module");
  EXPECT_EQ(without_wrappers("module._orig_mod"), "_orig_mod");
  EXPECT_EQ(without_wrappers(""), "");
  EXPECT_EQ(without_wrappers("a..b."), "a..b.");
}

TEST(Vocabulary, HasARowForEachToken) {  // the published models of Llama, GPT-2, GPT-NeoX, Falcon; Megatron
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight", "embed_out.weight",
        "transformer.word_embeddings.weight", "embedding.word_embeddings.weight", "output_layer.weight"})
    EXPECT_TRUE(is_of_vocabulary(name)) << name;
  for (const char* name :
       {"transformer.wpe.weight", "model.embed_tokens.lora_A.weight", "score.weight", "model.norm.weight", "lm_head.bias"})
    EXPECT_FALSE(is_of_vocabulary(name)) << name;
}

TEST(Adapters, AreRecognisedByElement) {
  EXPECT_TRUE(is_lora("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"));
  EXPECT_TRUE(is_lora("base_model.model.model.embed_tokens.lora_embedding_B.default"));
  EXPECT_TRUE(is_lora("decoder.layers.0.mlp.linear_fc1.adapter.linear_in.weight"));
  EXPECT_FALSE(is_lora("wav2vec2.adapter.layers.0.conv.weight"));
  EXPECT_FALSE(is_lora("model.lora_Alpha.weight"));
  EXPECT_FALSE(is_lora("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"));
}

TEST(Adapters, BaseLayersGetTheirModelsNames) {
  EXPECT_EQ(without_peft("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"), "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(without_peft("base_model.model.score.original_module.weight"), "score.weight");
  EXPECT_EQ(without_peft("base_model.model.base_model.model.model.norm.weight"),
            "model.norm.weight");  // a PeftModel that was wrapped again
  EXPECT_EQ(without_peft("base_model.model.model.embed_tokens.token_adapter.base_layer.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(without_peft("model.token_adapter.proj.base_layer.weight"), "model.token_adapter.proj.weight");  // a module of this name
  EXPECT_EQ(without_peft("model.norm.weight"), "model.norm.weight");
}

TEST(Glob, StarQuestionMarkAndSets) {
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("model.layers.*.mlp.*", "model.layers.10.mlp.up_proj.weight"));
  EXPECT_TRUE(glob_matches("visual.*", "visual.patch_embed.proj.weight"));
  EXPECT_FALSE(glob_matches("visual.*", "model.visual.patch_embed.proj.weight"));
  EXPECT_TRUE(glob_matches("layer.[0-3].?", "layer.2.w"));
  EXPECT_FALSE(glob_matches("layer.[!0-3].?", "layer.2.w"));
  EXPECT_TRUE(glob_matches("a[]]b", "a]b"));
  EXPECT_TRUE(glob_matches("a[b", "a[b"));
  EXPECT_FALSE(glob_matches("abc", "abcd"));
  EXPECT_TRUE(glob_matches("*a*b", "xxaxxbxb"));
}

TEST(Glob, ManyStarsEndSoon) {
  EXPECT_FALSE(glob_matches(std::string(60, '*') + "a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
}

TEST(Order, NumbersByValueAndBeforeWords) {
  std::vector<std::string> names{"model.norm", "model.layers.10.a", "model.layers.2.a", "model.layers", "lm_head",
                                 "h.shard_11", "h.shard_2",         "h.shard",          "h.3",          "model.layers.2.down"};
  std::sort(names.begin(), names.end(), natural_less);
  // sorted(names, key=transformers.core_model_loading.dot_natural_key) of transformers 5.24
  EXPECT_EQ(names, (std::vector<std::string>{"h.3", "h.shard", "h.shard_2", "h.shard_11", "lm_head", "model.layers", "model.layers.2.a",
                                             "model.layers.2.down", "model.layers.10.a", "model.norm"}));
}

TEST(Renames, LongestFirstAndOnce) {
  EXPECT_EQ(with_parts_replaced("net.decoder.layers.0.w", {{"net.", "x."}, {"net.decoder.", "model."}}), "model.layers.0.w");
  EXPECT_EQ(with_parts_replaced("a.b", {{"a", "b"}, {"b", "a"}}), "b.a");
  EXPECT_EQ(with_parts_replaced("self_attention.out_mix.weight", {{"self_attention.out_mix", "self_attn.o_proj"}}),
            "self_attn.o_proj.weight");
  EXPECT_EQ(with_parts_replaced("model.norm.weight", {{"net.", ""}}), "model.norm.weight");
}

}  // namespace
}  // namespace unshard
