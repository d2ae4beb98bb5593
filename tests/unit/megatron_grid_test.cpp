// Parallel sizes and missing ranks of a Megatron checkpoint, from folder names and what each file says of itself.
#include <gtest/gtest.h>

#include "formats/megatron_grid.h"
#include "unshard/error.h"

namespace unshard {
namespace {

class Checkpoint {
 public:
  MegatronArgs args;
  bool with_args = true;
  std::uint64_t layers = 2;  ///< of each file's one chunk

  void folder(const std::string& name, bool has_embedding = false) {
    ShardFile file;
    file.path = "run/" + name + "/model_optim_rng.pt";
    file.label = file.path;
    source_.files.push_back(file);
    MegatronFile about;
    if (with_args) about.args = args;
    about.chunk_layers = {layers};
    about.has_embedding = has_embedding;
    about.routed_experts = 4;
    about_.push_back(encode(about));
  }
  [[nodiscard]] MegatronGrid grid() const { return make_megatron_grid(source_, about_); }
  [[nodiscard]] std::string missing() const {
    for (const Finding& finding : grid().findings) {
      if (finding.text.starts_with("missing ")) return finding.text.substr(8, finding.text.find(" (") - 8);
    }
    return "";
  }

 private:
  Source source_;
  std::vector<std::vector<std::byte>> about_;
};

TEST(MegatronGrid, ASecondNumberIsWhatTheArgsSay) {
  Checkpoint by_pipeline;
  by_pipeline.args.pipeline = 2;
  by_pipeline.args.layers = 4;
  by_pipeline.folder("mp_rank_00_000");
  by_pipeline.folder("mp_rank_00_001");
  EXPECT_EQ(by_pipeline.grid().places[1].pipeline, 1U);
  EXPECT_EQ(by_pipeline.grid().layers[0][1], (LayerRange{2, 2}));
  Checkpoint by_expert;
  by_expert.args.expert = 2;
  by_expert.args.layers = 2;
  by_expert.args.experts = 4;
  by_expert.folder("mp_rank_00_000");
  by_expert.folder("mp_rank_00_001");
  EXPECT_EQ(by_expert.grid().places[1].expert, 1U);
  EXPECT_EQ(by_expert.grid().places[1].pipeline, 0U);
}

TEST(MegatronGrid, WhatTheArgsSayOfTheModelIsTold) {
  Checkpoint told;
  told.args.layers = 2;
  told.args.hidden_size = 16;
  told.args.heads = 4;
  told.args.groups = 1;
  told.args.head_dim = 8;
  told.args.rotary_interleaved = true;
  told.folder("mp_rank_00");
  const Facts facts = told.grid().facts();
  EXPECT_EQ(facts.at("args_layers"), 2U);
  EXPECT_EQ(facts.at("args_hidden_size"), 16U);
  EXPECT_EQ(facts.at("args_heads"), 4U);
  EXPECT_EQ(facts.at("args_groups"), 1U);
  EXPECT_EQ(facts.at("args_head_dim"), 8U);
  EXPECT_TRUE(facts.contains("rotary_interleaved"));
  Checkpoint silent;
  silent.args.layers = 2;
  silent.folder("mp_rank_00");
  for (const char* name : {"args_heads", "args_groups", "args_head_dim", "rotary_interleaved"})
    EXPECT_FALSE(silent.grid().facts().contains(name)) << name;
}

TEST(MegatronGrid, WithoutArgsTheEmbeddingTells) {
  Checkpoint pipeline;
  pipeline.with_args = false;
  pipeline.folder("mp_rank_00_000", true);
  pipeline.folder("mp_rank_00_001", false);
  EXPECT_EQ(pipeline.grid().pipeline, 2U);
  EXPECT_EQ(pipeline.grid().layers[0][1], (LayerRange{2, 2}));
  Checkpoint expert;
  expert.with_args = false;
  expert.folder("mp_rank_00_000", true);
  expert.folder("mp_rank_00_001", true);
  EXPECT_EQ(expert.grid().expert, 2U);
}

TEST(MegatronGrid, MissingRanksAreNamed) {
  Checkpoint tensor;
  tensor.args.tensor = 2;
  tensor.args.layers = 2;
  tensor.folder("mp_rank_00");
  EXPECT_EQ(tensor.missing(), "mp_rank_01");
  Checkpoint stage;
  stage.args.tensor = stage.args.pipeline = 2;
  stage.args.layers = 4;
  stage.folder("mp_rank_00_000");
  stage.folder("mp_rank_01_000");
  EXPECT_EQ(stage.missing(), "mp_rank_00_001, mp_rank_01_001");
  Checkpoint expert;
  expert.args.expert = 2;
  expert.args.experts = 4;
  expert.args.layers = 2;
  expert.folder("mp_rank_00_000");
  EXPECT_EQ(expert.missing(), "mp_rank_00_001");
}

TEST(MegatronGrid, WithSmallerExpertTensorSizeFewerFoldersAreComplete) {
  Checkpoint whole;
  whole.args.tensor = 4;
  whole.args.expert = 2;
  whole.args.expert_tensor = 1;
  whole.args.experts = 4;
  whole.args.layers = 2;
  for (const char* name : {"mp_rank_00_000", "mp_rank_01_001", "mp_rank_02_000", "mp_rank_03_001"}) whole.folder(name);
  EXPECT_EQ(whole.missing(), "");
  Checkpoint part = Checkpoint();
  part.args = whole.args;
  for (const char* name : {"mp_rank_00_000", "mp_rank_01_001", "mp_rank_02_000"}) part.folder(name);
  EXPECT_EQ(part.missing(), "mp_rank_03_001");
}

TEST(MegatronGrid, ContradictionsAreRefused) {
  Checkpoint two_jobs;
  two_jobs.args.tensor = 2;
  two_jobs.args.layers = 2;
  two_jobs.folder("mp_rank_00");
  two_jobs.args.layers = 3;
  two_jobs.folder("mp_rank_01");
  EXPECT_THROW(static_cast<void>(two_jobs.grid()), Error);
  Checkpoint beyond;
  beyond.args.layers = 2;
  beyond.folder("mp_rank_00");
  beyond.folder("mp_rank_01");
  EXPECT_THROW(static_cast<void>(beyond.grid()), Error);
  Checkpoint overwritten;
  overwritten.args.expert_tensor = 2;
  overwritten.args.experts = 4;
  overwritten.args.layers = 2;
  overwritten.folder("mp_rank_00");
  EXPECT_THROW(static_cast<void>(overwritten.grid()), Error);
}

TEST(MegatronGrid, ALayerLessIsAFinding) {
  Checkpoint short_stage;
  short_stage.args.pipeline = 2;
  short_stage.args.layers = 4;
  short_stage.folder("mp_rank_00_000");
  short_stage.layers = 1;
  short_stage.folder("mp_rank_00_001");
  ASSERT_EQ(short_stage.grid().findings.size(), 1U);
  EXPECT_EQ(short_stage.grid().findings[0].text, "has 1 layers, but args place 2 there");
}

}  // namespace
}  // namespace unshard
