// The plan: every byte once, even shares, boundaries, groups, rounds; and stages.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "dry_run.h"
#include "unshard/error.h"
#include "unshard/output_format.h"
#include "unshard/plan.h"

namespace unshard {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

struct Model {
  Targets targets;
  Layout layout;
};

Model model_of(const std::vector<std::pair<std::string, Shape>>& tensors, std::uint64_t max_shard_bytes = 50'000'000'000) {
  Model model;
  for (const auto& [name, shape] : tensors) model.targets.targets.push_back({name, DType::bf16, shape, {}});
  model.layout = output_named("safetensors").lay_out(model.targets, {.max_shard_bytes = max_shard_bytes});
  return model;
}

/// Files of the given payload sizes, one tensor of bytes each.
Model files_of(const std::vector<std::uint64_t>& sizes) {
  Model model;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    model.targets.targets.push_back({std::to_string(i), DType::u8, {sizes[i]}, {}});
    model.layout.files.push_back({std::to_string(i), std::string(8 + i % 7 * 8, 'h'), 8 + i % 7 * 8 + sizes[i]});
    model.layout.placed.push_back({i, i, 8 + i % 7 * 8, sizes[i]});
  }
  return model;
}

template <class Number>
std::string layer_name(Number layer) {
  std::string name = "model.layers.";
  return name += std::to_string(layer);
}

double balance(const Plan& plan) {
  const std::vector<std::uint64_t> bytes = bytes_by_rank(plan);
  const double sum = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}));
  return sum / static_cast<double>(bytes.size()) / static_cast<double>(*std::max_element(bytes.begin(), bytes.end()));
}

/// The ranges of the file that hold targets of the stage, adjacent ones joined: computed tensor by tensor.
std::vector<std::pair<std::uint64_t, std::uint64_t>> expected_ranges(const Model& model, std::uint32_t file, int stage,
                                                                     std::uint64_t layers) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const PlacedTarget& placed : model.layout.placed) {
    if (placed.file != file || placed.size_bytes == 0) continue;
    if (stage != 0 && stage_of(model.targets.targets[placed.target].name, layers) != stage) continue;
    if (!ranges.empty() && ranges.back().second == placed.position) {
      ranges.back().second += placed.size_bytes;
    } else {
      ranges.emplace_back(placed.position, placed.position + placed.size_bytes);
    }
  }
  return ranges;
}

template <class Range>
std::vector<std::pair<std::uint64_t, std::uint64_t>> joined(const std::vector<Range>& ranges, std::uint32_t file) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sorted, result;
  for (const Range& range : ranges) {
    if (range.file == file) sorted.emplace_back(range.begin, range.end);
  }
  std::sort(sorted.begin(), sorted.end());
  for (const auto& range : sorted) {
    EXPECT_LT(range.first, range.second);
    if (!result.empty()) {
      EXPECT_GE(range.first, result.back().second) << "overlap";
    }
    if (!result.empty() && result.back().second == range.first) {
      result.back().second = range.second;
    } else {
      result.push_back(range);
    }
  }
  return result;
}

void check_groups(const Plan& plan) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> files_of_waves;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<int, int>> groups_of_rank;  // (wave, rank): groups of one, larger groups
  for (const Group& group : plan.groups) {
    EXPECT_TRUE(files_of_waves.emplace(group.wave, group.file).second) << "two groups for one file in one wave";
    ASSERT_FALSE(group.ranks.empty());
    EXPECT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end()));
    for (const std::uint32_t rank : group.ranks) {
      ASSERT_LT(rank, static_cast<std::uint32_t>(plan.ranks));
      auto& [single, shared] = groups_of_rank[{group.wave, rank}];
      (group.ranks.size() == 1 ? single : shared) += 1;
      EXPECT_FALSE(shared > 1 || (shared == 1 && single > 0)) << "rank " << rank << " is in two groups of wave " << group.wave;
    }
  }
  EXPECT_TRUE(std::is_sorted(plan.groups.begin(), plan.groups.end(),
                             [](const Group& a, const Group& b) { return std::pair(a.wave, a.file) < std::pair(b.wave, b.file); }));
  for (const Group& group : plan.groups) {
    for (const std::uint32_t rank : group.ranks) {
      EXPECT_TRUE(std::any_of(plan.runs[rank].begin(), plan.runs[rank].end(),
                              [&](const Run& run) { return run.file == group.file && run.wave == group.wave; }))
          << "rank " << rank << " is in a group and has nothing to write";
    }
  }
  for (std::uint32_t rank = 0; rank < plan.runs.size(); ++rank) {
    for (const Run& run : plan.runs[rank]) {
      EXPECT_TRUE(std::any_of(plan.groups.begin(), plan.groups.end(), [&](const Group& group) {
        return group.file == run.file && group.wave == run.wave && std::binary_search(group.ranks.begin(), group.ranks.end(), rank);
      })) << "a run outside every group";
    }
  }
}

void check_steps(const Plan& plan) {
  ASSERT_EQ(plan.rounds.size(), plan.wave_count);
  for (std::uint32_t wave = 0; wave < plan.wave_count; ++wave) {
    std::size_t most = 0;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const std::vector<Run> steps = steps_of(plan, rank, wave);
      most = std::max(most, steps.size());
      std::uint64_t bytes = 0;
      for (const Run& step : steps) {
        EXPECT_LE(step.end - step.begin, plan.step_bytes);
        bytes += step.end - step.begin;
      }
      std::uint64_t expected = 0;
      for (const Run& run : plan.runs[static_cast<std::size_t>(rank)]) expected += run.wave == wave ? run.end - run.begin : 0;
      EXPECT_EQ(bytes, expected);
    }
    EXPECT_EQ(plan.rounds[wave], most);
    EXPECT_GT(most, 0u) << "a wave in which nobody writes";
  }
}

void check_plan(const Model& model, const Plan& plan, const PlanOptions& options) {
  std::vector<Run> runs;
  for (const auto& of_rank : plan.runs) {
    EXPECT_TRUE(std::is_sorted(of_rank.begin(), of_rank.end(), [](const Run& a, const Run& b) {
      return std::tuple(a.wave, a.file, a.begin) < std::tuple(b.wave, b.file, b.begin);
    }));
    runs.insert(runs.end(), of_rank.begin(), of_rank.end());
  }
  for (std::uint32_t file = 0; file < model.layout.files.size(); ++file) {
    const auto expected = expected_ranges(model, file, options.stage, options.stage_layers);
    EXPECT_EQ(joined(runs, file), expected);
    EXPECT_EQ(joined(plan.windows, file), expected);
    for (const Run& run : runs) {
      if (run.file != file) continue;
      for (const std::uint64_t edge : {run.begin, run.end}) {
        const bool at_end =
            std::any_of(expected.begin(), expected.end(), [&](const auto& range) { return edge == range.first || edge == range.second; });
        EXPECT_TRUE(at_end || edge % mib == 0) << edge;
      }
    }
  }
  for (const Window& window : plan.windows) EXPECT_LE(window.end - window.begin, options.window_bytes);
  check_groups(plan);
  check_steps(plan);
}

TEST(Plan, OneFileIsSharedByAllRanksInOneWave) {
  const Model model = files_of({1000 * mib});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 4});
  check_plan(model, plan, {.ranks = 4});
  ASSERT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.groups[0].ranks.size(), 4u);
  EXPECT_EQ(bytes_by_rank(plan), (std::vector<std::uint64_t>{250 * mib - 8, 250 * mib, 250 * mib, 250 * mib + 8}));
  EXPECT_EQ(plan.rounds, std::vector<std::uint64_t>{32});  // 31.25 steps of 8 MiB
}

TEST(Plan, ComputedBytesCountTwice) {
  Model model;
  for (const std::uint32_t i : {0U, 1U, 2U}) {
    model.targets.targets.push_back({std::to_string(i), DType::u8, {12 * mib}, {}});
    model.layout.placed.push_back({i, 0, 8 + i * 12 * mib, 12 * mib});
  }
  model.layout.files.push_back({"file", std::string(8, 'h'), 8 + 36 * mib});
  model.targets.targets[1].computation = std::make_shared<const Computation>();
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 3});
  check_plan(model, plan, {.ranks = 3});
  // 12 + 2 * 12 + 12 = 3 * 16: the first rank also gets 2 MiB of the second tensor, the last one as much.
  EXPECT_EQ(bytes_by_rank(plan), (std::vector<std::uint64_t>{14 * mib - 8, 8 * mib, 14 * mib + 8}));
}

TEST(Plan, RanksMeetInOrderAroundAHole) {
  const Model model = files_of({2'460'992});
  const PlanOptions options{.ranks = 3, .done = {{0, 8, 1'200'000}, {0, 2'040'000, 2'041'000}}};
  const Plan plan = make_plan(model.targets, model.layout, options);
  check_groups(plan);
  std::uint64_t all = 0;
  for (const std::uint64_t bytes : bytes_by_rank(plan)) all += bytes;
  EXPECT_EQ(all, 840'000U + 420'000U);
}

TEST(Plan, OneRankWritesEveryFileAloneInOneWave) {
  const Model model = files_of({5 * mib, 100, 3 * mib});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 1});
  check_plan(model, plan, {.ranks = 1});
  EXPECT_EQ(plan.wave_count, 1u);
  for (const Group& group : plan.groups) EXPECT_EQ(group.ranks.size(), 1u);
}

TEST(Plan, WithMoreFilesThanRanksFilesAreWholeAndTheRestIsShared) {
  const Model model = files_of(std::vector<std::uint64_t>(10, 4300 * mib));
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 4});
  check_plan(model, plan, {.ranks = 4});
  EXPECT_EQ(std::count_if(plan.groups.begin(), plan.groups.end(), [](const Group& g) { return g.wave == 0 && g.ranks.size() == 1; }), 8);
  EXPECT_GE(balance(plan), 0.99);
}

TEST(Plan, WithMoreRanksThanFilesEachFileGetsRanksByItsBytes) {
  const Model model = files_of({4000 * mib, 2000 * mib, 2000 * mib});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 8});
  check_plan(model, plan, {.ranks = 8});
  ASSERT_EQ(plan.groups.size(), 3u);
  EXPECT_EQ(plan.groups[0].ranks.size(), 4u);
  EXPECT_EQ(plan.groups[1].ranks.size(), 2u);
  EXPECT_EQ(plan.groups[2].ranks.size(), 2u);
}

TEST(Plan, ThreeEqualFilesKeepFourRanksBusyAllTheTime) {
  const Model model = files_of({1200 * mib, 1200 * mib, 1200 * mib});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 4});
  check_plan(model, plan, {.ranks = 4});
  EXPECT_GE(balance(plan), 0.98);
  const std::uint64_t rounds = std::accumulate(plan.rounds.begin(), plan.rounds.end(), std::uint64_t{0});
  EXPECT_LE(rounds, 116u);  // 900 MiB a rank in steps of 8 MiB are 113
}

/// The nodes whose ranks write each file.
std::map<std::uint32_t, std::set<int>> nodes_of_files(const Plan& plan, const std::vector<int>& nodes) {
  std::map<std::uint32_t, std::set<int>> result;
  for (std::size_t rank = 0; rank < plan.runs.size(); ++rank) {
    for (const Run& run : plan.runs[rank]) result[run.file].insert(nodes[rank]);
  }
  return result;
}

TEST(Plan, RanksThatCantWriteHaveNothing) {
  const Model model = files_of({100 * mib, 700 * mib});
  const PlanOptions options{.ranks = 4, .nodes = {no_writer, 0, no_writer, 1}};
  const Plan plan = make_plan(model.targets, model.layout, options);
  check_plan(model, plan, options);
  const std::vector<std::uint64_t> bytes = bytes_by_rank(plan);
  EXPECT_EQ(bytes[0] + bytes[2], 0u);
  EXPECT_NEAR(static_cast<double>(bytes[1]), 400.0 * mib, 20.0 * mib);
  EXPECT_THROW((void)make_plan(model.targets, model.layout, {.ranks = 2, .nodes = {no_writer, no_writer}}), Error);
}

TEST(Plan, OneNodePerFileSharesWholeFilesByTheRanksOfTheNodes) {
  const Model model = files_of({300 * mib, 310 * mib, 320 * mib, 330 * mib});
  const std::vector<int> nodes{0, 1, 0, 0};  // node 1 has a quarter of the ranks, and they are not neighbours
  const PlanOptions options{.ranks = 4, .nodes = nodes, .one_node_per_file = true};
  const Plan plan = make_plan(model.targets, model.layout, options);
  check_plan(model, plan, options);
  std::size_t of_node_1 = 0;
  for (const auto& [file, writers] : nodes_of_files(plan, nodes)) {
    EXPECT_EQ(writers.size(), 1u) << "file " << file;
    of_node_1 += writers.count(1);
  }
  EXPECT_EQ(of_node_1, 1u);
  const std::vector<std::uint64_t> bytes = bytes_by_rank(plan);
  for (const std::size_t rank : {0, 2, 3}) EXPECT_NEAR(static_cast<double>(bytes[rank]), 313.0 * mib, 30.0 * mib);
}

TEST(Plan, OneNodePerFileWithOneFileLeavesTheOtherNodesToRead) {
  const Model model = files_of({300 * mib});
  const std::vector<int> nodes{0, 0, 1, 1};
  const PlanOptions options{.ranks = 4, .nodes = nodes, .one_node_per_file = true};
  const Plan plan = make_plan(model.targets, model.layout, options);
  check_plan(model, plan, options);
  EXPECT_EQ(nodes_of_files(plan, nodes).at(0), std::set<int>{0});
}

TEST(Plan, MoreRanksThanBytesLeaveRanksIdle) {
  const Model model = model_of({{"a", {10}}, {"b", {3, 5}}});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 64});
  check_plan(model, plan, {.ranks = 64});
  EXPECT_EQ(bytes_by_rank(plan)[0], 50u);
}

TEST(Plan, AModelWithoutElementsHasNoWaves) {
  const Model model = model_of({{"a", {0, 4}}});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 3});
  check_plan(model, plan, {.ranks = 3});
  EXPECT_EQ(plan.wave_count, 0u);
}

TEST(Plan, WindowsHoldWholeRowsOrWholeNeighbours) {
  // A row is 2000 bytes; 1000 rows of a window of 2,000,000 bytes, rounded to row blocks of 128, are 896.
  const Model model = model_of({{"a", {10}}, {"b", {20}}, {"big", {2, 1000, 1000}}, {"c", {7}}});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 1, .window_bytes = 2'000'000});
  const std::uint64_t start = model.layout.files[0].header.size();
  ASSERT_EQ(plan.windows.size(), 5u);
  EXPECT_EQ(plan.windows[0].begin, start);
  EXPECT_EQ(plan.windows[0].end, start + 60);
  EXPECT_EQ(plan.windows[1].end, start + 60 + 896 * 2000);
  EXPECT_EQ(plan.windows[2].end, start + 60 + 1792 * 2000);
  EXPECT_EQ(plan.windows[3].end, start + 60 + 2000 * 2000);
  EXPECT_EQ(plan.windows[4].end, start + 60 + 2000 * 2000 + 14);
}

TEST(Plan, ARowLargerThanAWindowIsCutInside) {
  const Model model = model_of({{"wide", {2, 1500}}});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 1, .window_bytes = 1001});
  const std::uint64_t start = model.layout.files[0].header.size();
  std::vector<std::uint64_t> ends;
  for (const Window& window : plan.windows) ends.push_back(window.end - start);
  EXPECT_EQ(ends, (std::vector<std::uint64_t>{1000, 2000, 3000, 4000, 5000, 6000}));
}

TEST(Plan, StagesAreToldApartByTheLayerInTheName) {
  for (const char* name : {"model.embed_tokens.weight", "transformer.wte.weight", "wpe.weight", "model.layers.0.x", "h.9.attn.weight",
                           "visual.blocks.3.x", "layers.2.weight", "gpt_neox.layers.9.mlp.experts.12.w"}) {
    EXPECT_EQ(stage_of(name, 10), 1) << name;
  }
  for (const char* name : {"model.norm.weight", "lm_head.weight", "model.layers.10.x", "transformer.h.11.x",
                           "layers.99999999999999999999.x", "layers.x.weight", "model.layers.3", "", "."}) {
    EXPECT_EQ(stage_of(name, 10), 2) << name;
  }
  EXPECT_EQ(stage_of("model.layers.0.x", 0), 2);
}

TEST(Plan, TheStagesTogetherAreTheWholeModelInTheSameLayout) {
  std::vector<std::pair<std::string, Shape>> tensors{{"model.embed_tokens.weight", {5000, 512}}};
  for (int layer = 0; layer < 24; ++layer) {
    for (const char* part : {".a.weight", ".b.weight", ".norm.weight"})
      tensors.emplace_back(layer_name(layer).append(part), Shape{900, 777});
  }
  tensors.emplace_back("model.norm.weight", Shape{512});
  const Model model = model_of(tensors, 12'000'000);
  std::uint64_t sum = 0;
  for (const int stage : {1, 2}) {
    const PlanOptions options{.ranks = 3, .stage = stage};
    const Plan plan = make_plan(model.targets, model.layout, options);
    check_plan(model, plan, options);
    for (const std::uint64_t bytes : bytes_by_rank(plan)) sum += bytes;
  }
  std::uint64_t all = 0;
  for (const PlacedTarget& placed : model.layout.placed) all += placed.size_bytes;
  EXPECT_EQ(sum, all);
}

TEST(Plan, RandomLayoutsAndRanksAreCoveredOnceAndEven) {
  std::mt19937_64 random(20240817);
  const auto up_to = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(random); };
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    std::vector<std::uint64_t> sizes(1 + up_to(i % 3 == 0 ? 2 : 40));
    const std::uint64_t scale = std::uint64_t{1} << (10 + up_to(24));
    for (std::uint64_t& size : sizes) size = i % 2 == 0 ? scale + up_to(scale / 8) : up_to(2 * scale);
    const Model model = files_of(sizes);
    PlanOptions options{
        .ranks = static_cast<int>(1 + up_to(i % 4 == 0 ? 200 : 12)), .window_bytes = 64 * mib, .step_bytes = 1 + up_to(8 * mib)};
    if (i % 5 == 0) {
      for (int rank = 0; rank < options.ranks; ++rank) options.nodes.push_back(static_cast<int>(up_to(3)));
      options.one_node_per_file = i % 2 == 0;
    }
    const Plan plan = make_plan(model.targets, model.layout, options);
    check_plan(model, plan, options);
    const std::uint64_t total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
    if (!options.one_node_per_file && total > static_cast<std::uint64_t>(options.ranks) * 100 * mib) {
      EXPECT_GE(balance(plan), 0.95);
    }
  }
}

TEST(Plan, RandomModelsInStages) {
  std::mt19937_64 random(7);
  const auto up_to = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(random); };
  for (int i = 0; i < 100; ++i) {
    SCOPED_TRACE(i);
    std::vector<std::pair<std::string, Shape>> tensors;
    for (std::uint64_t layer = 0, layers = up_to(14); layer <= layers; ++layer) {
      for (std::uint64_t part = 0; part <= up_to(4); ++part) {
        tensors.emplace_back(layer_name(layer) + "." + std::to_string(part) + ".w", Shape{up_to(3000), up_to(700)});
      }
    }
    tensors.emplace_back("embed", Shape{up_to(10000), 300});
    Model model = model_of(tensors, 1'000'000 + up_to(20'000'000));
    for (Target& target : model.targets.targets)
      if (up_to(1) == 0) target.computation = std::make_shared<const Computation>();
    const PlanOptions options{.ranks = static_cast<int>(1 + up_to(6)),
                              .window_bytes = 4 * mib,
                              .step_bytes = 1 + up_to(2 * mib),
                              .stage = static_cast<int>(up_to(2)),
                              .stage_layers = up_to(14)};
    check_plan(model, make_plan(model.targets, model.layout, options), options);
  }
}

TEST(Plan, AHugeModelIsSharedEvenly) {
  std::vector<std::pair<std::string, Shape>> tensors;
  for (int layer = 0; layer < 61; ++layer) {
    for (int expert = 0; expert < 256; ++expert) {
      for (const char* part : {"gate", "up", "down"}) {
        tensors.emplace_back(layer_name(layer) + ".mlp.experts." + std::to_string(expert) + "." + part + "_proj.weight", Shape{2048, 7168});
      }
    }
  }
  const Model model = model_of(tensors, 8'400'000'000);
  const PlanOptions options{.ranks = 512};
  const Plan plan = make_plan(model.targets, model.layout, options);
  (void)plan_hash(plan);
  EXPECT_GT(model.layout.files.size(), 160u);
  EXPECT_GE(balance(plan), 0.95);
  EXPECT_LE(plan.wave_count, 12u);
}

TEST(Plan, TheHashTellsPlansApart) {
  const Model model = files_of({10 * mib, 3 * mib});
  const std::uint64_t hash = plan_hash(make_plan(model.targets, model.layout, {.ranks = 2}));
  EXPECT_EQ(hash, plan_hash(make_plan(model.targets, model.layout, {.ranks = 2})));
  EXPECT_NE(hash, plan_hash(make_plan(model.targets, model.layout, {.ranks = 3})));
  EXPECT_NE(hash, plan_hash(make_plan(model.targets, model.layout, {.ranks = 2, .step_bytes = mib})));
  Model other = model;
  other.layout.files[1].header[0] = 'H';
  EXPECT_NE(hash, plan_hash(make_plan(other.targets, other.layout, {.ranks = 2})));
}

TEST(Plan, PlacedInFindsTheTargetsOfARange) {
  const Model model = model_of({{"a", {10}}, {"b", {0}}, {"c", {10}}, {"d", {10}}});
  const Plan plan = make_plan(model.targets, model.layout, {});
  const std::uint64_t start = model.layout.files[0].header.size();
  EXPECT_EQ(placed_in(plan, 0, start, start + 1), (std::pair<std::size_t, std::size_t>{0, 1}));
  EXPECT_EQ(placed_in(plan, 0, start + 19, start + 21), (std::pair<std::size_t, std::size_t>{0, 3}));
  EXPECT_EQ(placed_in(plan, 0, start + 40, start + 60), (std::pair<std::size_t, std::size_t>{3, 4}));
  EXPECT_EQ(placed_in(plan, 0, start + 60, start + 70), (std::pair<std::size_t, std::size_t>{4, 4}));
  EXPECT_EQ(placed_in(plan, 1, 0, 70), (std::pair<std::size_t, std::size_t>{4, 4}));
}

TEST(Plan, ALayoutThatOverlapsIsRefused) {
  Model model = files_of({100, 100});
  model.layout.placed[1] = {1, 0, 50, 20};
  EXPECT_THROW((void)make_plan(model.targets, model.layout, {}), Error);
  model.layout.placed[1] = {1, 1, 4, 20};  // inside the header
  EXPECT_THROW((void)make_plan(model.targets, model.layout, {}), Error);
}

TEST(DryRun, SaysFilesBytesAndBalance) {
  const Model model = model_of({{"a", {10}}, {"b", {3, 5}}});
  const Plan plan = make_plan(model.targets, model.layout, {.ranks = 2});
  MoveNeeds needs;
  needs.readers = Readers::homes;
  needs.other_ranks = true;
  needs.opens = 7;
  needs.most_opens = 4;
  needs.read_bytes = 60;
  needs.messages = 1;
  needs.exchanged_bytes = 20;
  std::string text;
  for (const std::string& line : dry_run_lines(model.targets, plan, 12345, needs)) text += line + "\n";
  for (const char* part : {"2 tensors, 50 bytes of tensors in 1 file by 2 ranks", "bfloat16: 2 tensors, 25 elements, 50 bytes",
                           "model.safetensors: ", "1 window, rank 0", "least 0, mean 25, most 50, balance 0.500", "12345 bytes a rank",
                           "one rank for each shard; 60 bytes, 7 opens of shards, at most 4 by one rank", "1 message, 20 bytes", "as if"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_NE(dry_run_json(model.targets, plan, 12345, {}).find(R"("name":"model.safetensors")"), std::string::npos);
}

}  // namespace
}  // namespace unshard
