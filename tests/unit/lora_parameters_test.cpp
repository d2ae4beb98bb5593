// Which bare parameters the pairs of a module stand for, and by which name the config speaks of them.
#include "lora_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/refusal.h"
#include "unshard/error.h"
#include "unshard/mapping.h"

namespace unshard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Rows = std::vector<TensorRow>;

/// A base of an unknown model type with these parameters of m.experts, and an adapter with these pairs, from the innermost.
struct Experts {
  Rows table;
  AdapterUse use;

  struct Sizes {
    std::uint64_t out, in, rank;
  };

  Experts(const std::vector<std::pair<std::string, Shape>>& base, const std::vector<Sizes>& pairs, const std::string& config) {
    for (const auto& [name, shape] : base) table.push_back({"m." + name, DType::f32, shape, 0});
    const auto first = static_cast<TensorId>(table.size());
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      std::string module = "base_model.model.m.experts";
      for (std::size_t depth = i + 1; depth < pairs.size(); ++depth) module += ".base_layer";
      table.push_back({module + ".lora_A.weight", DType::f32, {pairs[i].rank, pairs[i].in}, 0});
      table.push_back({module + ".lora_B.weight", DType::f32, {pairs[i].out, pairs[i].rank}, 0});
    }
    use = {"adapter", find_adapters(table, first, static_cast<TensorId>(table.size()), true).at(0), parse_adapter_config(config, "a.json"),
           1};
  }

  [[nodiscard]] Mapping map() const {
    MapOptions options;
    options.lora = {LoraChoice::What::fold, {use}};
    return map_tensors(table, ModelConfig::parse(R"({"model_type": "nobody"})", "config.json"), options, TieAnswer::not_asked);
  }

  /// The scale of what is added to a parameter, or "transposed" with it.
  [[nodiscard]] std::string added_to(const std::string& name) const {
    const Mapping mapping = map();
    for (const Target& target : mapping.targets.targets) {
      if (target.name != "m." + name || !target.computation) continue;
      const Addend& addend = target.computation->addends.at(0);
      const bool is_b = table[addend.left.term.source].name.find("lora_B") != std::string::npos;
      return (is_b ? "" : "transposed ") + std::to_string(static_cast<int>(addend.scale));
    }
    return "nothing";
  }

  [[nodiscard]] std::string refusal() const {
    return test::refusal_of([this] { (void)map(); });
  }
};

// Two experts; hidden 4, inner 3.
const std::pair<std::string, Shape> up{"experts.up_proj", {2, 3, 4}}, down{"experts.down_proj", {2, 4, 3}};
constexpr const char* both =
    R"({"r": 2, "lora_alpha": 2, "peft_version": "0.21.2", "target_parameters": ["experts.down_proj", "experts.up_proj"],
  "alpha_pattern": {"up_proj": 4, "down_proj": 6, "experts": 64}})";

TEST(Parameters, LieInTheOrderOfRegistrationFromTheInnermost) {
  const Experts experts({up, down}, {{3, 4, 4}, {4, 3, 4}}, both);
  EXPECT_EQ(experts.added_to("experts.up_proj"), "2");
  EXPECT_EQ(experts.added_to("experts.down_proj"), "3");
}

TEST(Parameters, AreTransposedTogetherOrNotAtAll) {
  // [in, out], the first of them square: only the second tells.
  const Experts experts({{"experts.gate_up_proj", {2, 4, 4}}, {"experts.down_proj", {2, 2, 4}}}, {{4, 4, 4}, {4, 2, 4}},
                        R"({"r": 2, "lora_alpha": 2, "peft_version": "0.21.2", "target_parameters": ["gate_up_proj", "down_proj"]})");
  EXPECT_EQ(experts.added_to("experts.gate_up_proj"), "transposed 1");
  EXPECT_EQ(experts.added_to("experts.down_proj"), "transposed 1");
}

TEST(Parameters, OfAVersionThatTookInputsFirstAreTransposed) {
  const Experts experts({up, down}, {{4, 3, 4}, {3, 4, 4}},
                        R"({"r": 2, "lora_alpha": 4, "peft_version": "0.18.1", "target_parameters": ["up_proj", "down_proj"]})");
  EXPECT_EQ(experts.added_to("experts.up_proj"), "transposed 2");
  EXPECT_EQ(experts.added_to("experts.down_proj"), "transposed 2");
}

TEST(Parameters, ThatFitInTwoWaysAreRefused) {
  // Nothing says which parameter it is, nor which way round.
  EXPECT_THAT(Experts({up, down}, {{3, 4, 4}}, R"({"r": 2, "lora_alpha": 2})").refusal(), HasSubstr("more than one way"));
  // The version says which way round.
  EXPECT_EQ(Experts({up, down}, {{3, 4, 4}}, R"({"r": 2, "lora_alpha": 2, "peft_version": "0.21.2"})").added_to("experts.up_proj"), "1");
  // A square one, of which only the version could say that.
  const std::pair<std::string, Shape> square{"experts.down_proj", {2, 4, 4}};
  EXPECT_THAT(Experts({square}, {{4, 4, 4}}, R"({"r": 2, "lora_alpha": 2, "target_parameters": ["experts.down_proj"]})").refusal(),
              HasSubstr("more than one way"));
  EXPECT_EQ(Experts({square}, {{4, 4, 4}}, both).added_to("experts.down_proj"), "3");
  // In the order of registration they fit as [in, out], in the other as [out, in], which the version says.
  EXPECT_THAT(Experts({{"experts.up_proj", {2, 4, 3}}, {"experts.down_proj", {2, 3, 4}}}, {{3, 4, 4}, {4, 3, 4}}, both).refusal(),
              HasSubstr("more than one way"));
  // Names that say nothing of their order, and shapes that neither do.
  EXPECT_THAT(Experts({{"experts.one", {2, 3, 4}}, {"experts.two", {2, 3, 4}}}, {{3, 4, 4}, {3, 4, 4}},
                      R"({"r": 2, "lora_alpha": 2, "peft_version": "0.21.2", "target_parameters": ["one", "two"]})")
                  .refusal(),
              HasSubstr("more than one way"));
}

TEST(Parameters, AWeightThatIsListedIsMeantByItsOwnName) {
  const std::string listed =
      R"({"r": 2, "lora_alpha": 2, "target_parameters": ["experts.weight"], "alpha_pattern": {"experts": 8, "weight": 6}})";
  EXPECT_EQ(Experts({{"experts.weight", {3, 4}}}, {{3, 4, 2}}, listed).added_to("experts.weight"), "3");
  EXPECT_EQ(Experts({{"experts.weight", {2, 3, 4}}}, {{3, 4, 4}}, listed).added_to("experts.weight"), "3");
  EXPECT_EQ(Experts({{"experts.weight", {3, 4}}}, {{3, 4, 2}}, R"({"r": 2, "lora_alpha": 2, "alpha_pattern": {"experts": 8, "weight": 6}})")
                .added_to("experts.weight"),
            "4");
}

TEST(Parameters, OfAModuleAreThoseWithItsName) {
  AdapterConfig config;
  config.target_parameters = {"mlp.experts.up_proj", "other.down_proj", "gate_up_proj", "model.layers.0.mlp.experts.down_proj"};
  EXPECT_THAT(listed_parameters(config, "layers.0.mlp.experts"), ElementsAre("down_proj", "gate_up_proj", "up_proj"));
  EXPECT_THAT(listed_parameters(config, "model.layers.1.mlp.experts"), ElementsAre("gate_up_proj", "up_proj"));
}

TEST(Parameters, ByTheConfigAloneHaveTheRankOfTheirPattern) {
  const Experts experts(
      {}, {{6, 4, 8}, {4, 3, 4}},
      R"({"r": 2, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"], "rank_pattern": {".*\\.gate_up_proj": 4}})");
  const auto pairs = pairs_by_module(experts.use.adapter).at("m.experts");
  const auto parameters = parameters_by_config(experts.use.config, {"m.experts", "m.experts", pairs});
  ASSERT_TRUE(parameters);
  EXPECT_EQ(parameters->at(0).peft_name, "m.experts.down_proj");
  EXPECT_EQ(parameters->at(0).experts, 2U);
  EXPECT_EQ(parameters->at(1).peft_name, "m.experts.gate_up_proj");
  EXPECT_EQ(parameters->at(1).experts, 2U);
}

}  // namespace
}  // namespace unshard
