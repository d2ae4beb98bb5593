// The order in which tensors are saved, and when the files of a folder are kept. That transformers makes the same files is seen in
// tests/models/round_trip.py.
#include "save_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kept_split.h"
#include "support/gather.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> saved_order(const std::vector<std::string>& names, const std::string& model_type, bool keeps_order = false) {
  std::vector<TensorRow> table;
  for (const std::string& name : names) table.push_back({name, DType::f32, {1}, 0});
  const ModelConfig config = ModelConfig::parse("{\"model_type\": \"" + model_type + "\"}", "config.json");
  MapOptions options;
  options.keeps_order = keeps_order;
  std::vector<std::string> sorted;
  for (const NamedTensor& tensor : clean_names(make_context(table, config, options)).tensors) sorted.push_back(tensor.name);
  return sorted;
}

TEST(SaveOrder, IsThatOfTheModulesWhereTheFilesSortTheirTensors) {
  EXPECT_THAT(saved_order({"lm_head.weight", "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.up_proj.weight",
                           "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.q_proj.weight",
                           "model.layers.10.self_attn.q_proj.weight", "model.layers.2.self_attn.q_proj.weight", "model.norm.weight"},
                          "llama"),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                          "model.layers.0.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight",
                          "model.layers.2.self_attn.q_proj.weight", "model.layers.10.self_attn.q_proj.weight", "model.norm.weight",
                          "lm_head.weight"));
}

TEST(SaveOrder, OfABaseModelSavedAloneIsTheSame) {
  EXPECT_THAT(saved_order({"layers.0.mlp.up_proj.weight", "layers.0.self_attn.q_proj.weight", "norm.weight", "embed_tokens.weight"}, "llama"),
              ElementsAre("embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "layers.0.mlp.up_proj.weight", "norm.weight"));
}

TEST(SaveOrder, PutsUnknownTensorsBehindTheirNeighbours) {
  EXPECT_THAT(saved_order({"model.layers.0.self_attn.a", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight", "model.layers.1.x"}, "olmo2"),
              ElementsAre("model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.a", "model.layers.1.x", "model.norm.weight"));
}

TEST(SaveOrder, IsTheStoredOneOfAStateDict) {
  EXPECT_THAT(saved_order({"lm_head.weight", "model.embed_tokens.weight"}, "llama", true),
              ElementsAre("lm_head.weight", "model.embed_tokens.weight"));
}

TEST(SaveOrder, OfExpertsIsThatOfTheTensorsThatHoldThem) {
  const std::string experts = "model.layers.0.mlp.experts.";
  EXPECT_THAT(saved_order({experts + "0.gate_proj.weight", experts + "0.down_proj.weight", experts + "0.up_proj.weight",
                           experts + "1.gate_proj.weight", experts + "1.down_proj.weight", experts + "1.up_proj.weight"},
                          "qwen3_moe"),
              ElementsAre(experts + "0.down_proj.weight", experts + "1.down_proj.weight", experts + "0.gate_proj.weight",
                          experts + "1.gate_proj.weight", experts + "0.up_proj.weight", experts + "1.up_proj.weight"));
}

/// A folder with a file per list of sizes (bytes); the tensors are called a, b, c …
struct Folder {
  Source source;
  Catalog catalog;
  Targets targets;

  explicit Folder(const std::vector<std::vector<std::uint64_t>>& files) {
    for (std::uint32_t file = 0; file < files.size(); ++file) {
      for (const std::uint64_t size : files[file]) {
        const auto id = static_cast<TensorId>(catalog.tensors.size());
        const std::string name(1, static_cast<char>('a' + id));
        catalog.tensors.push_back({name, DType::u8, {size}, 0});
        source.index.push_back({name, file});
        targets.targets.push_back({name, DType::u8, {size}, {copy_of(id, {size})}});
      }
    }
  }
  [[nodiscard]] std::vector<std::uint32_t> kept(std::uint64_t limit) const { return kept_split(source, catalog, targets, limit); }
};

TEST(KeptSplit, IsAnyThatTheLimitGives) {
  EXPECT_THAT(Folder({{5, 4}, {2, 8}}).kept(10), ElementsAre(0, 0, 1, 1)) << "the 2 would have fitted; the 8 came first";
  EXPECT_THAT(Folder({{12}, {5, 4}, {2}}).kept(10), ElementsAre(0, 1, 1, 2)) << "a tensor above the limit has a file of its own";
}

TEST(KeptSplit, IsNotOneForAnotherLimit) {
  EXPECT_THAT(Folder({{5, 4}, {2, 8}}).kept(9), IsEmpty()) << "a file is too large";
  EXPECT_THAT(Folder({{5, 4}, {2, 8}}).kept(17), IsEmpty()) << "any of the second file would have fitted into the first";
  EXPECT_THAT(Folder({{5, 4}}).kept(10), IsEmpty());
}

TEST(KeptSplit, NeedsEveryTensorAsItIs) {
  Folder cast({{5, 4}, {2, 8}});
  cast.targets.targets[0].dtype = DType::i8;
  EXPECT_THAT(cast.kept(10), IsEmpty());
  Folder dropped({{5, 4}, {2, 8}});
  dropped.targets.targets.pop_back();
  EXPECT_THAT(dropped.kept(10), IsEmpty());
}

}  // namespace
}  // namespace unshard
