// Which tensor of the base an adapter's full copy or trained rows stand for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lora_bases.h"
#include "support/refusal.h"
#include "unshard/error.h"
#include "unshard/lora.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct Fold {
  std::vector<TensorRow> table;
  MapOptions options;

  /// Of an unknown model type.
  Fold(const std::vector<std::pair<std::string, Shape>>& base, const std::vector<std::pair<std::string, Shape>>& adapter,
       const std::string& config) {
    for (const auto& [name, shape] : base) table.push_back({name, DType::f32, shape, 0});
    const auto first = static_cast<TensorId>(table.size());
    for (const auto& [name, shape] : adapter) table.push_back({"base_model.model." + name, DType::f32, shape, 0});
    options.lora = {LoraChoice::What::fold,
                    {{"adapter", find_adapters(table, first, static_cast<TensorId>(table.size()), true).at(0),
                      parse_adapter_config(config, "a.json"), 1}}};
  }

  [[nodiscard]] std::vector<Target> targets() const {
    return map_tensors(table, ModelConfig::parse(R"({"model_type": "nobody"})", "config.json"), options, TieAnswer::not_asked)
        .targets.targets;
  }
  /// "<name of the target> <- <name of what is stored>"
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Target& target : targets()) names.push_back(target.name + " <- " + table[target.terms.front().source].name);
    return names;
  }
  [[nodiscard]] std::string refusal() const {
    return test::refusal_of([this] { (void)targets(); });
  }
};

constexpr const char* saves_projector = R"({"r": 2, "lora_alpha": 4, "modules_to_save": ["projector"]})";

TEST(Replacement, IsFoundUnderAnotherPrefix) {
  EXPECT_THAT(
      Fold({{"projector.one.weight", {3, 4}}, {"text.one.weight", {3, 4}}}, {{"model.projector.one.weight", {3, 4}}}, saves_projector)
          .names(),
      UnorderedElementsAre("projector.one.weight <- base_model.model.model.projector.one.weight", "text.one.weight <- text.one.weight"));
  // A vocabulary that has grown; nothing lists what was saved.
  EXPECT_THAT(Fold({{"model.text.embed.weight", {6, 4}}}, {{"model.embed.weight", {8, 4}}}, R"({"r": 2, "lora_alpha": 4})").names(),
              ElementsAre("model.text.embed.weight <- base_model.model.model.embed.weight"));
}

TEST(Replacement, ThatMayStandForAnotherTensorIsRefused) {
  const std::pair<std::string, Shape> own{"model.projector.one.weight", {3, 4}};
  // Two that end like it.
  EXPECT_THAT(Fold({{"a.projector.one.weight", {3, 4}}, {"b.projector.one.weight", {3, 4}}}, {own}, saves_projector).refusal(),
              AllOf(HasSubstr("a.projector.one.weight"), HasSubstr("b.projector.one.weight")));
  // One that ends like it, but can't be it.
  EXPECT_THAT(Fold({{"projector.one.weight", {3, 5}}}, {own}, saves_projector).refusal(), HasSubstr("may stand or not"));
  // The module may be called otherwise.
  EXPECT_THAT(Fold({{"multi.one.weight", {3, 4}}}, {own}, saves_projector).refusal(), HasSubstr("multi.one.weight"));
}

TEST(Replacement, OfNoTensorIsANewHead) {
  EXPECT_THAT(Fold({{"m.output.dense.weight", {4, 4}}}, {{"classifier.dense.weight", {4, 4}}},
                   R"({"r": 2, "lora_alpha": 4, "modules_to_save": ["classifier"]})")
                  .names(),
              UnorderedElementsAre("m.output.dense.weight <- m.output.dense.weight",
                                   "classifier.dense.weight <- base_model.model.classifier.dense.weight"));
}

TEST(Replacement, OfAWholeModelsPrefixIsFoundAndOfAPartIsRefused) {
  const char* saves_heads = R"({"r": 2, "lora_alpha": 4, "modules_to_save": ["classifier", "lm_head"]})";
  const std::pair<std::string, Shape> embedding{"language_model.model.embed_tokens.weight", {6, 4}};
  EXPECT_THAT(Fold({embedding, {"language_model.lm_head.weight", {6, 4}}}, {{"lm_head.weight", {6, 4}}}, saves_heads).names(),
              UnorderedElementsAre("language_model.model.embed_tokens.weight <- language_model.model.embed_tokens.weight",
                                   "language_model.lm_head.weight <- base_model.model.lm_head.weight"));
  EXPECT_THAT(Fold({embedding, {"audio.classifier.weight", {3, 4}}}, {{"classifier.weight", {3, 4}}}, saves_heads).refusal(),
              HasSubstr("audio.classifier.weight"));
}

TEST(BaseTensors, FindByTheirEndingWhatWasStoredReplacedOrTied) {
  const std::vector<TensorRow> table{{"a.embed.weight", DType::f32, {4, 2}, 0}, {"copy", DType::f32, {4, 2}, 0}};
  const MapContext context = make_context(table, ModelConfig::parse(R"({"model_type": "nobody"})", "config.json"), MapOptions{});
  BaseTensors bases(context, {1});
  bases.tie("b.head.weight", "a.embed.weight");
  bases.replace("c.new.bias", 1);
  EXPECT_THAT(bases.ending_like("x.y.embed.weight"), ElementsAre("a.embed.weight"));
  EXPECT_THAT(bases.ending_like("head.weight"), ElementsAre("b.head.weight"));
  EXPECT_THAT(bases.ending_like("new.bias"), ElementsAre("c.new.bias"));
  EXPECT_TRUE(bases.ending_like("weight").empty());
}

TEST(Replacement, OfASecondAdapterIsNotWrittenBesideTheFirst) {
  Fold fold({{"projector.one.weight", {3, 4}}}, {{"model.projector.one.weight", {3, 4}}}, saves_projector);
  const auto first = static_cast<TensorId>(fold.table.size());
  fold.table.push_back({"base_model.model.model.projector.one.weight", DType::f32, {3, 4}, 1});
  fold.options.lora.adapters.push_back({"second", find_adapters(fold.table, first, static_cast<TensorId>(fold.table.size()), true).at(0),
                                        parse_adapter_config(saves_projector, "b.json"), 1});
  try {
    (void)fold.targets();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("two adapters hold a full copy"));
  }
}

TEST(TrainedRows, AreFoundUnderAnotherPrefix) {
  const std::vector<Target> targets = Fold({{"text.embed.weight", {4, 2}}}, {{"model.embed.token_adapter.trainable_tokens_delta", {1, 2}}},
                                           R"({"r": 2, "lora_alpha": 4, "trainable_token_indices": {"embed": [3]}})")
                                          .targets();
  ASSERT_EQ(targets.size(), 1U);
  EXPECT_EQ(targets[0].terms.back().source, 1U);
  EXPECT_EQ(targets[0].terms.back().target_start[0], 3U);
}

TEST(TrainedRows, OfAnEmbeddingThatIsSavedWholeAreThoseOfTheCopy) {
  const std::string embed = "model.embed.token_adapter.";
  const std::vector<Target> targets =
      Fold({{"model.embed.weight", {4, 2}}}, {{embed + "base_layer.weight", {5, 2}}, {embed + "trainable_tokens_delta", {1, 2}}},
           R"({"r": 2, "lora_alpha": 4, "trainable_token_indices": [4]})")
          .targets();
  ASSERT_EQ(targets.size(), 1U);
  EXPECT_EQ(targets[0].name, "model.embed.weight");
  EXPECT_EQ(targets[0].terms.front().source, 1U);
  EXPECT_EQ(targets[0].terms.back().source, 2U);
}

}  // namespace
}  // namespace unshard
