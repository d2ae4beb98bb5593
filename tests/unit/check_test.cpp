// The command `check`, on the real checkpoints of tests/cases and on small folders made here.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "non_finite.h"
#include "support/command_run.h"
#include "support/safetensors_text.h"

namespace unshard {
namespace {

using nlohmann::json;
using testing::bytes_of;
using testing::safetensors;
using testing::TemporaryFolder;
using testing::write_file;

struct Outcome {
  bool complete = false;
  json result;
  std::string lines;
};

Outcome run(int ranks, const std::vector<std::string>& folders, bool deep = false) {
  Outcome outcome;
  const auto log = testing::run_command(ranks, [&](const Session& session) {
    CheckOptions options;
    options.input.local_dirs = folders;
    options.deep = deep;
    const CheckResult result = check(session, options);
    if (session.comm.rank() > 0) return;
    outcome.complete = result.complete;
    outcome.result = json::parse(result.json);
  });
  outcome.lines = log.lines;
  return outcome;
}

std::string case_folder(const std::string& name) {
  return std::string(UNSHARD_CASES) + "/" + name;
}

bool says(const Outcome& outcome, const std::string& text) {
  return outcome.lines.find(text) != std::string::npos;
}

TEST(Check, DeepComparesTheSecondCopyOfAFileToo) {
  const std::string input = case_folder("fsdp/two_ranks_bf16/input"), name = "model_world_size_2_rank_1.pt";
  const TemporaryFolder copy;
  std::string bytes = testing::content(input + "/" + name);
  copy.copy(input + "/" + name, "second/" + name);
  EXPECT_TRUE(run(2, {input, copy / "second"}, true).complete);
  bytes[bytes.size() / 2] ^= 1;  // of the payload
  write_file(copy / ("second/" + name), bytes);
  EXPECT_TRUE(run(2, {input, copy / "second"}).complete) << "headers tell nothing";
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const Outcome deep = run(ranks, {input, copy / "second"}, true);
    EXPECT_FALSE(deep.complete);
    EXPECT_TRUE(says(deep, name + ": there are two different files of this name")) << deep.lines;
  }
}

TEST(Check, NamesACopiedFileOfDcpWhereBothHoldPartsOfTheSameTensors) {
  const TemporaryFolder folder;
  folder.copy(case_folder("dcp/plain-fsdp2/input"), "run");
  std::filesystem::path first;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "run")) {
    if (entry.path().filename() == "__0_0.distcp") first = entry.path();
  }
  std::filesystem::copy(first, first.parent_path() / "__1_0.distcp", std::filesystem::copy_options::overwrite_existing);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const Outcome got = run(ranks, {folder / "run"});
    EXPECT_FALSE(got.complete);
    EXPECT_TRUE(says(got, "__1_0.distcp: holds the same data as ")) << got.lines;
  }
}

TEST(Check, NamesTheFileThatIsACopyBeforeThePartsThatAreMissing) {
  const TemporaryFolder folder;
  folder.copy(case_folder("fsdp/check_complete/fsdp2"), "run");
  const std::filesystem::path run_folder = folder / "run";
  std::filesystem::copy(run_folder / "model_world_size_4_rank_0.pt", run_folder / "model_world_size_4_rank_2.pt",
                        std::filesystem::copy_options::overwrite_existing);
  for (int ranks = 1; ranks <= 3; ++ranks) {
    const Outcome got = run(ranks, {folder / "run"});
    const auto copy = got.lines.find("model_world_size_4_rank_2.pt: holds the same data as "), missing = got.lines.find("is in no file");
    EXPECT_NE(copy, std::string::npos) << got.lines;
    EXPECT_NE(missing, std::string::npos) << got.lines;
    EXPECT_LT(copy, missing) << got.lines;
  }
}

TEST(Check, SaysWhatACompleteCheckpointIs) {
  const Outcome got = run(2, {case_folder("fsdp/check_complete/fsdp2")});
  EXPECT_TRUE(got.complete) << got.lines;
  EXPECT_EQ(got.result["format"], "fsdp");
  EXPECT_EQ(got.result["world_size"], 4);
  EXPECT_EQ(got.result["files"], 4);
  EXPECT_EQ(got.result["dtypes"].begin().key(), "bfloat16");
  EXPECT_TRUE(says(got, "FSDP checkpoint, world size 4: ")) << got.lines;
  EXPECT_TRUE(says(got, "Shard(0) in ")) << got.lines;
  EXPECT_TRUE(says(got, "\ncomplete\n")) << got.lines;
}

TEST(Check, GivesTheSameResultForAnyNumberOfRanks) {
  for (const std::string name : {"fsdp/check_complete/fsdp2", "fsdp/check_incomplete/missing", "hostile/code_in_spare_object/eval"}) {
    const Outcome one = run(1, {case_folder(name)}, true);
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const Outcome other = run(ranks, {case_folder(name)}, true);
      EXPECT_EQ(other.result, one.result) << name << ranks;
      EXPECT_EQ(other.lines, one.lines) << name << ranks;
    }
  }
}

TEST(Check, NamesRemoteCodeThatTheConfigsAskForAndTheFolderLacks) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors",
             safetensors(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", bytes_of<float>({1})));
  write_file(folder / "config.json", R"({"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig",
             "AutoModelForCausalLM": "modeling_own.OwnModel", "AutoModel": "someone/else--modeling_else.Model"}})");
  write_file(folder / "tokenizer_config.json", R"({"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", null]}})");
  write_file(folder / "configuration_own.py", "");
  const Outcome got = run(2, {folder / ""});
  EXPECT_TRUE(got.complete) << got.lines;
  EXPECT_TRUE(says(got, "config.json: auto_map names code that is not beside it: modeling_own.py, tokenization_own.py;")) << got.lines;
  write_file(folder / "modeling_own.py", "");
  write_file(folder / "tokenization_own.py", "");
  EXPECT_FALSE(says(run(2, {folder / ""}), "auto_map"));
}

TEST(Check, NamesWhatIsMissing) {
  const Outcome missing = run(2, {case_folder("fsdp/check_incomplete/missing")});
  EXPECT_FALSE(missing.complete);
  EXPECT_TRUE(says(missing, "\nincomplete: ")) << missing.lines;
  const Outcome truncated = run(2, {case_folder("fsdp/check_incomplete/truncated")});
  EXPECT_FALSE(truncated.complete);
  EXPECT_TRUE(says(truncated, "error: model_world_size_2_rank_1.pt: ")) << truncated.lines;
}

TEST(Check, NamesObjectsThatWouldBeCode) {
  const Outcome got = run(1, {case_folder("hostile/code_in_spare_object/os_system")});
  EXPECT_TRUE(says(got, "posix.system")) << got.lines;
  EXPECT_FALSE(got.result["objects"].empty());
}

TEST(Check, ComparesReplicasWhenItGoesDeep) {
  EXPECT_TRUE(run(2, {case_folder("fsdp/hybrid_2x2/input")}, true).complete);
  const Outcome got = run(2, {case_folder("fsdp/hybrid_replica_differs/input")}, true);
  EXPECT_FALSE(got.complete);
  EXPECT_TRUE(says(got, "model.layers.1.mlp.up_proj.weight")) << got.lines;
}

TEST(Check, CountsNansWhenItGoesDeep) {
  const TemporaryFolder folder;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  write_file(
      folder / "model.safetensors",
      safetensors(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"v":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}})",
                  bytes_of<float>({nan, inf, -inf, 1, 2})));
  const Outcome got = run(2, {folder / ""}, true);
  EXPECT_TRUE(got.complete);
  EXPECT_EQ(got.result["non_finite"], (json{{{"name", "w"}, {"nan", 1}, {"infinite", 2}}}));
  EXPECT_TRUE(says(got, "note: w: 1 NaN and 2 infinite elements")) << got.lines;
  EXPECT_FALSE(run(1, {folder / ""}).result.contains("non_finite"));
}

TEST(Check, FindsEverythingThatIsWrongWithAnIndexInOneRun) {
  const TemporaryFolder folder;
  write_file(
      folder / "model.safetensors.index.json",
      R"({"metadata":{"total_size":3},"weight_map":{"a":"1.safetensors","ghost":"1.safetensors","b":"2.safetensors","c":"3.safetensors","d":"4.safetensors"}})");
  write_file(
      folder / "1.safetensors",
      safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"orphan":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                  "xx"));
  write_file(folder / "2.safetensors", safetensors(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "x"));
  write_file(folder / "4.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  const Outcome got = run(2, {folder / ""});
  EXPECT_FALSE(got.complete);
  for (const char* text :
       {"error: 3.safetensors: the index", "error: 2.safetensors: ", "error: 4.safetensors: is a git-lfs pointer", "ghost", "orphan"}) {
    EXPECT_TRUE(says(got, text)) << text << "\n" << got.lines;
  }
}

TEST(Check, NotesAWrongTotalSize) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors.index.json", R"({"metadata":{"total_size":3},"weight_map":{"a":"1.safetensors"}})");
  write_file(folder / "1.safetensors", safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x"));
  const Outcome got = run(1, {folder / ""});
  EXPECT_TRUE(got.complete);
  EXPECT_TRUE(says(got, "note: model.safetensors.index.json: total_size is 3, the tensors have 1 bytes")) << got.lines;
}

TEST(Check, SaysRankAndTargetsOfLora) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors",
             safetensors(R"({"base_model.model.layers.0.q_proj.lora_A.default.weight":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},)"
                         R"("base_model.model.layers.0.q_proj.lora_B.default.weight":{"dtype":"U8","shape":[4,2],"data_offsets":[6,14]}})",
                         std::string(14, 'x')));
  const Outcome got = run(2, {folder / ""});
  EXPECT_EQ(got.result["lora"], (json{{"tensors", 2}, {"ranks", {2}}, {"alphas", json::array()}, {"targets", {"q_proj"}}}));
  EXPECT_TRUE(says(got, "LoRA: 2 tensors, rank 2, targets q_proj")) << got.lines;
}

TEST(Check, DoesNotPrintControlCharactersOfNames) {
  for (const std::string name : {"escape", "newline", "nul", "path", "empty", "long"}) {
    const std::string folder = case_folder("hostile/odd_tensor_names/" + name);
    testing::RecordingLog log;
    try {
      log = testing::run_command(1, [&](const Session& session) {
        CheckOptions options;
        options.input.local_dirs = {folder};
        (void)check(session, options);
      });
    } catch (const Error& error) {
      log.lines += error.what();
    }
    EXPECT_EQ(log.lines.find('\x1b'), std::string::npos) << name;
    EXPECT_EQ(log.lines.find("\nunshard: error: fake"), std::string::npos) << name;
  }
}

TEST(NonFinite, KnowsTheTypes) {
  const auto count = [](const std::string& bytes, DType dtype) { return count_non_finite(std::as_bytes(std::span(bytes)), dtype); };
  EXPECT_EQ(count(bytes_of<std::uint16_t>({0x7F80, 0xFF80, 0x7FC0, 0x3F80}), DType::bf16).infinite, 2U);
  EXPECT_EQ(count(bytes_of<std::uint16_t>({0x7F80, 0xFF80, 0x7FC0, 0x3F80}), DType::bf16).nan, 1U);
  EXPECT_EQ(count(bytes_of<std::uint16_t>({0x7C00, 0x7C01, 0x7BFF}), DType::f16).nan, 1U);
  EXPECT_EQ(count(bytes_of<double>({std::numeric_limits<double>::infinity(), 1}), DType::f64).infinite, 1U);
  EXPECT_EQ(count(bytes_of<std::uint8_t>({0x7F, 0xFF, 0x7E}), DType::f8_e4m3).nan, 2U);
  EXPECT_EQ(count(bytes_of<std::uint8_t>({0x7C, 0x7D}), DType::f8_e5m2).infinite, 1U);
  EXPECT_EQ(count(bytes_of<std::uint8_t>({0x80, 0x00}), DType::f8_e4m3fnuz).nan, 1U);
  EXPECT_EQ(count(bytes_of<std::uint32_t>({0x7FC00000}), DType::i32).nan, 0U);
}

}  // namespace
}  // namespace unshard
