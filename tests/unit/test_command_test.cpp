// The command `test`. The folders of tests/cases are real models of transformers; statistics in the expectations were computed with
// PyTorch.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/command_run.h"
#include "support/safetensors_text.h"

namespace unshard {
namespace {

using nlohmann::json;
using testing::bytes_of;
using testing::safetensors;
using testing::TemporaryFolder;
using testing::write_file;

const std::string shards_case = UNSHARD_CASES "/fsdp/test_from_shards/";

struct Outcome {
  bool equal = false;
  json result;
  std::string lines;
};

Outcome run(int ranks, const TestOptions& options, const std::vector<std::string>& disks = {}) {
  Outcome outcome;
  const auto log = testing::run_command(
      ranks,
      [&](const Session& session) {
        const TestResult result = test(session, options);
        if (session.comm.rank() > 0) {
          EXPECT_EQ(result.json, "");
          return;
        }
        outcome.equal = result.equal;
        outcome.result = json::parse(result.json);
      },
      disks);
  outcome.lines = log.lines;
  return outcome;
}

TestOptions folders(const std::string& merged, const std::string& reference) {
  TestOptions options;
  options.merged_dir = merged;
  options.test_hf_dir = reference;
  return options;
}

TestOptions from_shards(const std::string& reference) {
  TestOptions options;
  options.input.local_dirs = {shards_case + "input"};
  options.test_hf_dir = reference;
  return options;
}

/// A folder with one safetensors file.
void write_model(const std::string& folder, const std::string& header, const std::string& data, const std::string& config = "") {
  write_file(folder + "/model.safetensors", safetensors(header, data));
  if (!config.empty()) write_file(folder + "/config.json", config);
}

/// A folder with the F32 tensor `w` of shape [n].
void write_vector(const std::string& folder, const std::string& name, std::initializer_list<float> values) {
  const std::string bytes = std::to_string(4 * values.size());
  write_model(folder,
              "{\"" + name + R"(":{"dtype":"F32","shape":[)" + std::to_string(values.size()) + R"(],"data_offsets":[0,)" + bytes + "]}}",
              bytes_of<float>(values));
}

TEST(TestCommand, FindsAModelEqualToItself) {
  const Outcome got = run(1, folders(shards_case + "same", shards_case + "same"));
  EXPECT_TRUE(got.equal);
  EXPECT_NE(got.lines.find("21 tensors equal (5520 parameters, atol 1e-05, rtol 1e-05)"), std::string::npos) << got.lines;
}

TEST(TestCommand, SaysHowMuchChangedFromTheBaseModel) {
  const TemporaryFolder folder;
  write_vector(folder / "merged", "w", {3, 4, 0, 5});
  write_vector(folder / "base", "w", {3, 4, 0, 0});
  TestOptions options = folders(folder / "merged", folder / "merged");
  options.base_dir = folder / "base";
  for (int ranks = 1; ranks <= 2; ++ranks) {
    const Outcome got = run(ranks, options);
    EXPECT_TRUE(got.equal);
    EXPECT_EQ(got.result["base"]["tensors_changed"], 1);
    EXPECT_EQ(got.result["base"]["parameters_changed"], 1);
    EXPECT_EQ(got.result["base"]["relative_change"], 1.0) << "sqrt(25 / 25)";
    EXPECT_EQ(got.result["base"]["values"][0]["worst"]["merged"], 5.0);
    EXPECT_EQ(got.result["base"]["values"][0]["worst"]["base"], 0.0);
    EXPECT_NE(got.lines.find("1 of 1 tensor, 1 of 4 parameters"), std::string::npos) << got.lines;
  }
}

TEST(TestCommand, FindsThatNothingChangedFromTheBaseModel) {
  const TemporaryFolder folder;
  write_vector(folder / "merged", "w", {3, 4});
  TestOptions options = folders(folder / "merged", folder / "merged");
  options.base_dir = folder / "merged";
  const auto log = testing::run_command(2, [&](const Session& session) {
    const TestResult result = test(session, options);
    EXPECT_TRUE(result.equal);
    EXPECT_FALSE(result.changed);
  });
  EXPECT_NE(log.lines.find("1 tensor equal"), std::string::npos) << log.lines;
  EXPECT_NE(log.lines.find("Nothing changed from the base model"), std::string::npos) << log.lines;
}

TEST(TestCommand, ListsEveryTensorWhereThatIsAsked) {
  const TemporaryFolder folder;
  write_vector(folder / "merged", "w", {3, 4});
  write_vector(folder / "reference", "w", {3, 4.00001F});
  TestOptions options = folders(folder / "merged", folder / "reference");
  options.all_tensors = true;
  const Outcome got = run(1, options);
  EXPECT_TRUE(got.equal) << "within the tolerance";
  ASSERT_EQ(got.result["compared"].size(), 1U);
  EXPECT_NEAR(got.result["compared"][0]["cosine"].get<double>(), 1, 1e-9);
  EXPECT_NEAR(got.result["compared"][0]["rms"].get<double>(), 1e-5 / std::sqrt(2), 1e-6);
  options.test_hf_dir = options.merged_dir;
  EXPECT_EQ(run(1, options).result["compared"][0]["rms"], 0.0);
}

TEST(TestCommand, ComparesShardsWithoutMergingThem) {
  EXPECT_TRUE(run(2, from_shards(shards_case + "same")).equal);
}

TEST(TestCommand, SaysWhatOneChangedElementIs) {
  const Outcome got = run(2, from_shards(shards_case + "changed"));
  EXPECT_FALSE(got.equal);
  ASSERT_EQ(got.result["values_differ"].size(), 1U) << got.result;
  const json& value = got.result["values_differ"][0];
  EXPECT_EQ(value["name"], "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(value["different"], 1);
  EXPECT_EQ(value["elements"], 128);
  EXPECT_EQ(value["worst"]["index"], (json{6, 2}));
  EXPECT_DOUBLE_EQ(value["worst"]["merged"], -0.09716796875);
  EXPECT_DOUBLE_EQ(value["worst"]["reference"], 0.15234375);
  EXPECT_DOUBLE_EQ(value["max_abs"], 0.24951171875);
  EXPECT_NEAR(value["max_rel"].get<double>(), 1.6378205128205128, 1e-12);
  EXPECT_NEAR(value["cosine"].get<double>(), 0.9988696674055704, 1e-12);
  EXPECT_NEAR(value["rms"].get<double>(), 0.022053928539204456, 1e-12);
  EXPECT_NE(got.lines.find("values differ: model.layers.1.self_attn.k_proj.weight: 1 of 128 elements"), std::string::npos) << got.lines;
}

TEST(TestCommand, GivesTheSameResultForAnyNumberOfRanksAndThreads) {
  TestOptions options = from_shards(shards_case + "changed");
  options.tolerance = {0, 0};
  const json one = run(1, options).result;
  for (int ranks = 2; ranks <= 4; ++ranks) {
    options.input.threads = ranks;
    EXPECT_EQ(run(ranks, options).result, one) << ranks;
  }
}

TEST(TestCommand, SumsALargeTensorInTheSameOrderForAnyNumberOfRanks) {
  // 40 MB each: several groups and many pieces; most pieces have equal bits.
  const TemporaryFolder folder;
  std::vector<float> values(10'000'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1009) / 7.0F;
  const auto write = [&](const std::string& name) {
    const std::string data(reinterpret_cast<const char*>(values.data()), values.size() * 4);
    write_model(folder / name, R"({"w":{"dtype":"F32","shape":[10000,1000],"data_offsets":[0,40000000]}})", data);
  };
  write("a");
  values[5'000'003] += 3;
  values[9'999'999] -= 5;
  write("b");
  const json one = run(1, folders(folder / "a", folder / "b")).result;
  EXPECT_EQ(one["values_differ"][0]["different"], 2);
  EXPECT_EQ(one["values_differ"][0]["worst"]["index"], (json{9999, 999}));
  EXPECT_NEAR(one["values_differ"][0]["rms"].get<double>(), std::sqrt(34.0 / 10'000'000), 1e-12);
  EXPECT_EQ(run(3, folders(folder / "a", folder / "b")).result, one);
}

TEST(TestCommand, ReportsNamesShapesAndTypesInOneRun) {
  const TemporaryFolder folder;
  write_model(folder / "a",
              R"({"new":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"shape":{"dtype":"U8","shape":[2,1],"data_offsets":[1,3]},)"
              R"("type":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
              "xxxx");
  write_model(folder / "b",
              R"({"old":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"shape":{"dtype":"U8","shape":[1,2],"data_offsets":[1,3]},)"
              R"("type":{"dtype":"I8","shape":[1],"data_offsets":[3,4]}})",
              "xxxx");
  const Outcome got = run(2, folders(folder / "a", folder / "b"));
  EXPECT_FALSE(got.equal);
  for (const char* line : {"missing: old [1] uint8", "unexpected: new [1] uint8", "shape differs: shape: merged [2, 1], reference [1, 2]",
                           "dtype differs: type: merged uint8, reference int8"}) {
    EXPECT_NE(got.lines.find(line), std::string::npos) << line << "\n" << got.lines;
  }
  EXPECT_TRUE(got.result["values_differ"].empty()) << "120 is 120 in both types";
}

TEST(TestCommand, CastsToTheTypeOfTheReferenceWhenAsked) {
  const TemporaryFolder folder;
  write_vector(folder / "a", "w", {1.001953125F, -2});
  write_model(folder / "b", R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", bytes_of<std::uint16_t>({0x3F80, 0xC000}));
  TestOptions options = folders(folder / "a", folder / "b");
  options.tolerance = {0, 0};
  const Outcome plain = run(1, options);
  EXPECT_EQ(plain.result["dtype_differs"].size(), 1U);
  EXPECT_EQ(plain.result["values_differ"].size(), 1U);
  options.like_dtype = true;
  EXPECT_TRUE(run(1, options).equal);
}

TEST(TestCommand, TakesNanOnlyForNan) {
  const TemporaryFolder folder;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  write_vector(folder / "a", "w", {1, nan});
  write_vector(folder / "b", "w", {1, 2});
  TestOptions options = folders(folder / "a", folder / "b");
  options.tolerance = {1e30, 0};
  EXPECT_TRUE(run(1, folders(folder / "a", folder / "a")).equal);
  const Outcome got = run(1, options);
  EXPECT_FALSE(got.equal);
  EXPECT_EQ(got.result["values_differ"][0]["max_abs"], "inf");
}

TEST(TestCommand, TakesATiedHeadOnOneSideForNoDifference) {
  const TemporaryFolder folder;
  const std::string both =
      R"({"lm_head.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"model.embed_tokens.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})";
  const std::string one = R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";
  const std::string tied = R"({"model_type":"llama","tie_word_embeddings":true})",
                    untied = R"({"model_type":"llama","tie_word_embeddings":false})";
  write_model(folder / "both", both, bytes_of<float>({1, 2, 1, 2}), tied);
  write_model(folder / "different", both, bytes_of<float>({1, 3, 1, 2}), tied);
  write_model(folder / "one", one, bytes_of<float>({1, 2}), tied);
  write_model(folder / "untied", both, bytes_of<float>({1, 2, 1, 2}), untied);
  write_model(folder / "untied_one", one, bytes_of<float>({1, 2}), untied);
  EXPECT_TRUE(run(2, folders(folder / "both", folder / "one")).equal);
  EXPECT_TRUE(run(2, folders(folder / "one", folder / "both")).equal);
  EXPECT_FALSE(run(2, folders(folder / "different", folder / "one")).equal);
  EXPECT_EQ(run(2, folders(folder / "untied_one", folder / "untied")).result["missing"][0]["name"], "lm_head.weight");
}

TEST(TestCommand, ReadsFilesOfOtherNodesThroughRanksThatSeeThem) {
  // Each node has one rank file; the reference is on the third.
  const TemporaryFolder disks;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = "model_world_size_2_rank_" + std::to_string(rank) + ".pt";
    disks.copy(shards_case + "input/" + name, std::to_string(rank) + "/in/" + name);
  }
  disks.copy(shards_case + "input/huggingface", "0/in/huggingface");
  disks.copy(shards_case + "changed", "2/changed");
  TestOptions options = from_shards("/changed");
  options.input.local_dirs = {"/in"};
  const json got = run(3, options, {disks / "0", disks / "1", disks / "2"}).result;
  EXPECT_EQ(got["values_differ"], run(1, from_shards(shards_case + "changed")).result["values_differ"]);
  EXPECT_EQ(got["tensors"], 21);
}

TEST(TestCommand, RefusesAFolderWithoutWeights) {
  const TemporaryFolder folder;
  write_file(folder / "empty/config.json", "{}");
  const auto failure = [&](const std::string& merged, const std::string& reference) {
    return testing::failure_of(2, [&](const Session& session) { (void)test(session, folders(merged, reference)); });
  };
  const std::string whole = shards_case + "same";
  for (const std::string& got : {failure(folder / "empty", whole), failure(whole, folder / "empty"), failure(folder / "nowhere", whole)}) {
    EXPECT_TRUE(got.starts_with("bad_input: ")) << got;
    EXPECT_NE(got.find(folder / ""), std::string::npos) << got;
  }
}

TEST(TestCommand, ShowsNamesOfUntrustedFilesWithoutControlCharacters) {
  const TemporaryFolder folder;
  write_vector(folder / "a", "w\\u001b[31m\\nunshard: error: fake", {1});
  write_vector(folder / "b", "w", {1});
  const Outcome got = run(1, folders(folder / "a", folder / "b"));
  EXPECT_EQ(got.lines.find('\x1b'), std::string::npos);
  EXPECT_EQ(got.lines.find("\nunshard: error: fake"), std::string::npos);
}

}  // namespace
}  // namespace unshard
