// Which layers a pipeline stage holds. Expected values by hand from the examples in Megatron's documentation of its layer placement.
#include <gtest/gtest.h>

#include "formats/megatron_layers.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using Ranges = std::vector<std::vector<LayerRange>>;

MegatronArgs args_of(std::uint64_t layers, std::uint64_t pipeline) {
  MegatronArgs args;
  args.layers = layers;
  args.pipeline = pipeline;
  return args;
}

TEST(MegatronLayers, AreEvenWithoutFurtherArguments) {
  EXPECT_EQ(layers_by_args(args_of(8, 2), 1), (Ranges{{{0, 4}, {4, 4}}}));
}

TEST(MegatronLayers, OfVirtualStagesAreInterleaved) {
  EXPECT_EQ(layers_by_args(args_of(8, 2), 2), (Ranges{{{0, 2}, {2, 2}}, {{4, 2}, {6, 2}}}));
  EXPECT_EQ(layers_by_args(args_of(8, 2), 4), (Ranges{{{0, 1}, {1, 1}}, {{2, 1}, {3, 1}}, {{4, 1}, {5, 1}}, {{6, 1}, {7, 1}}}));
}

TEST(MegatronLayers, OfTheFirstAndLastStageMayBeStated) {
  MegatronArgs args = args_of(10, 4);
  args.first_stage_layers = 1;
  args.last_stage_layers = 3;
  EXPECT_EQ(layers_by_args(args, 1), (Ranges{{{0, 1}, {1, 3}, {4, 3}, {7, 3}}}));
  MegatronArgs only_last = args_of(5, 3);
  only_last.last_stage_layers = 1;
  EXPECT_EQ(layers_by_args(only_last, 1), (Ranges{{{0, 2}, {2, 2}, {4, 1}}}));
  MegatronArgs only_first = args_of(5, 2);
  only_first.first_stage_layers = 2;
  EXPECT_EQ(layers_by_args(only_first, 1), (Ranges{{{0, 2}, {2, 3}}}));
}

TEST(MegatronLayers, StatedStagesAreCutByVirtualStagesToo) {
  MegatronArgs args = args_of(12, 4);
  args.first_stage_layers = 2;
  args.last_stage_layers = 2;
  EXPECT_EQ(layers_by_args(args, 2), (Ranges{{{0, 1}, {1, 2}, {3, 2}, {5, 1}}, {{6, 1}, {7, 2}, {9, 2}, {11, 1}}}));
}

TEST(MegatronLayers, EmbeddingAndLossMayCountAsLayers) {
  MegatronArgs args = args_of(6, 4);
  args.embedding_counts = args.loss_counts = true;
  EXPECT_EQ(layers_by_args(args, 1), (Ranges{{{0, 1}, {1, 2}, {3, 2}, {5, 1}}}));
}

TEST(MegatronLayers, OneStageIgnoresPlacementArguments) {
  MegatronArgs args = args_of(6, 1);
  args.last_stage_layers = 2;
  EXPECT_EQ(layers_by_args(args, 1), (Ranges{{{0, 6}}}));
}

TEST(MegatronLayers, ALayoutIsReadVirtualStageByVirtualStage) {
  MegatronArgs args = args_of(5, 2);
  args.layout = "Et|tt|(t)*2|L";
  EXPECT_EQ(layers_by_args(args, 2), (Ranges{{{0, 1}, {1, 2}}, {{3, 2}, {5, 0}}}));
  const std::vector<std::uint64_t> stages = layers_of_layout("Ettt|(tt|)*29,m|L");
  ASSERT_EQ(stages.size(), 32U);
  EXPECT_EQ(stages[0], 3U);
  EXPECT_EQ(stages[29], 2U);
  EXPECT_EQ(stages[30], 0U);
  EXPECT_EQ(layers_of_layout("Et*3|t*2L"), (std::vector<std::uint64_t>{3, 2}));
}

TEST(MegatronLayers, WhatCannotBeIsRefused) {
  for (const char* layout : {"Etx|L", "(t*9", "t*99999999999", "((((t)*999999)*999999)*9"}) {
    EXPECT_THROW(static_cast<void>(layers_of_layout(layout)), Error) << layout;
  }
  MegatronArgs args = args_of(4, 2);
  args.layout = "Et|t|t|tL";
  EXPECT_THROW(static_cast<void>(layers_by_args(args, 1)), Error);
  MegatronArgs more = args_of(4, 2);
  more.first_stage_layers = 5;
  EXPECT_THROW(static_cast<void>(layers_by_args(more, 1)), Error);
}

}  // namespace
}  // namespace unshard
