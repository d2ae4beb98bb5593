// Which entries of a saved state are a model's weights, for the layouts that trainers write.
#include "formats/dcp_state.h"

#include <gtest/gtest.h>

namespace unshard {
namespace {

using Path = std::vector<std::string>;
using Names = std::vector<std::string>;

StateKinds kinds(const std::vector<Path>& paths) {
  std::vector<const Path*> pointers;
  for (const Path& path : paths) pointers.push_back(&path);
  return kinds_of_state(pointers);
}

/// The paths that are weights, joined.
Names weights(const std::vector<Path>& paths) {
  const StateKinds found = kinds(paths);
  Names names;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (!found.reasons[i].empty()) continue;
    std::string name;
    for (const std::string& key : paths[i]) name += (name.empty() ? "" : ".") + key;
    names.push_back(name);
  }
  return names;
}

TEST(DcpState, AModelSavedAloneIsAllWeights) {
  const std::vector<Path> paths{{"model.embed_tokens.weight"}, {"lm_head.weight"}};
  EXPECT_EQ(weights(paths).size(), 2U);
  EXPECT_EQ(kinds(paths).sections, Names{""});
}

TEST(DcpState, TheModelsDictionaryIsFoundAtAnyDepth) {
  const std::vector<Path> paths{{"app", "model", "model.norm.weight"}, {"app", "optim", "state", "model.norm.weight", "exp_avg"}};
  EXPECT_EQ(weights(paths), Names{"app.model.model.norm.weight"});
  EXPECT_EQ(kinds(paths).sections, Names{"app.model."});
  EXPECT_EQ(kinds(paths).reasons[1], "optimizer state");
}

TEST(DcpState, CountersBesideTheModelAreNoWeights) {
  EXPECT_EQ(weights({{"model", "norm.weight"}, {"rng"}, {"seen"}, {"mixed", "0"}}), Names{"model.norm.weight"});
}

TEST(DcpState, ModelKeysOnTopStayWhatTheyAreBesideOptimizerAndTrainState) {
  const std::vector<Path> paths{{"model.norm.weight"}, {"optimizer", "state.model.norm.weight.exp_avg"}, {"train_state", "step"}};
  EXPECT_EQ(weights(paths), Names{"model.norm.weight"});
  EXPECT_EQ(kinds(paths).sections, Names{""});
}

TEST(DcpState, OptimizersWithoutPathsAreToldByTheirNames) {
  EXPECT_EQ(weights({{"norm.weight"}, {"optimizer.state.exp_avg.norm.weight"}, {"chained_1.optimizer.state.param.norm.weight"}}),
            Names{"norm.weight"});
}

TEST(DcpState, OptimizersOfAnyNameAreToldByWhatTheyKeep) {
  EXPECT_EQ(weights({{"net", "norm.weight"}, {"opt_g", "state", "norm.weight", "exp_avg_sq"}}), Names{"net.norm.weight"});
}

TEST(DcpState, ADictionaryOfAnyNameIsTheModelWhenItIsTheOnlyOne) {
  const std::vector<Path> paths{{"state", "net", "a.weight"}, {"state", "net", "b.weight"}, {"step"}};
  EXPECT_EQ(kinds(paths).sections, Names{"state.net."});
  EXPECT_EQ(weights(paths).size(), 2U);
}

TEST(DcpState, SeveralModelsAreAllNamed) {
  EXPECT_EQ(kinds({{"actor", "model", "a.weight"}, {"critic", "model", "a.weight"}}).sections, (Names{"actor.model.", "critic.model."}));
  EXPECT_EQ(kinds({{"generator", "a.weight"}, {"discriminator", "a.weight"}}).sections, (Names{"discriminator.", "generator."}));
}

TEST(DcpState, AnOptimizerAloneHasNoWeights) {
  const std::vector<Path> paths{{"optimizer", "state", "norm.weight", "step"}};
  EXPECT_TRUE(weights(paths).empty());
  EXPECT_TRUE(kinds(paths).sections.empty());
}

}  // namespace
}  // namespace unshard
