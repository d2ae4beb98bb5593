// The command line as values.
#include "program/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "program/arguments.h"
#include "program/sizes.h"
#include "unshard/error.h"

namespace unshard {
namespace {

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string word; stream >> word;) result.push_back(word);
  return result;
}

const Abilities abilities{.formats = {"fsdp", "hf"}, .outputs = {"safetensors"}};

CommandLine parsed(const std::string& text) {
  return parse_command_line(words(text), abilities);
}

CommandLine merged(const std::string& options) {
  return parsed("merge --local-dir a --target-dir t " + options);
}

struct Refusal {
  ErrorCode code;
  std::string text;
};

Refusal refusal_of(const std::vector<std::string>& arguments, const Abilities& of_program = abilities) {
  try {
    (void)parse_command_line(arguments, of_program);
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

void expect_usage(const std::string& text, const std::string& says) {
  const Refusal refusal = refusal_of(words(text));
  EXPECT_EQ(refusal.code, ErrorCode::usage) << text;
  EXPECT_EQ(refusal.text.find("usage: "), 0U) << text << ": " << refusal.text;
  EXPECT_NE(refusal.text.find(says), std::string::npos) << text << ": " << refusal.text;
  EXPECT_EQ(refusal.text.find('\n'), std::string::npos) << text << ": " << refusal.text;
}

void expect_unsupported(const std::string& text, const std::string& says) {
  const Refusal refusal = refusal_of(words(text));
  EXPECT_EQ(refusal.code, ErrorCode::unsupported) << text << ": " << refusal.text;
  EXPECT_NE(refusal.text.find(says), std::string::npos) << text << ": " << refusal.text;
}

TEST(Spelling, OfNamesMayUseUnderscoresAndEqualsSigns) {
  const CommandLine line = parsed("merge --backend=fsdp --local_dir=a_b --target_dir c_d --low_cpu_mem_usage --max_shard_size=4KB");
  EXPECT_EQ(line.command, Command::merge);
  EXPECT_EQ(line.merge.input.backend, "fsdp");
  EXPECT_EQ(line.merge.input.local_dirs, std::vector<std::string>{"a_b"});
  EXPECT_EQ(line.merge.target_dir, "c_d");
  EXPECT_TRUE(line.merge.input.low_cpu_mem_usage);
  EXPECT_EQ(line.merge.max_shard_bytes, 4000U);
}

TEST(Spelling, OfValuesStays) {
  EXPECT_EQ(with_hyphens({"--a_b=c_d", "e_f", "-g_h", "--i_j", "--", "--k_l"}),
            (std::vector<std::string>{"--a-b=c_d", "e_f", "-g_h", "--i-j", "--", "--k_l"}));
}

TEST(LocalDir, MayBeRepeatedOrHaveCommas) {
  EXPECT_EQ(parsed("check --local-dir a,b --local_dir c").check.input.local_dirs, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(refusal_of({"check", "--local-dir", ""}).code, ErrorCode::usage);
  expect_usage("check --local-dir a b", "b");
}

TEST(Merge, HasDefaults) {
  const MergeOptions merge = merged("").merge;
  EXPECT_EQ(merge.input.backend, "auto");
  EXPECT_EQ(merge.input.threads, 4);
  EXPECT_EQ(merge.input.buffer_bytes, 268'435'456U);
  EXPECT_EQ(merge.map.dtype.kind, DTypeChoice::Kind::by_config);
  EXPECT_EQ(merge.stage, 0);
  EXPECT_EQ(merge.stage_layers, 10U);
  EXPECT_EQ(merge.io, IoMode::automatic);
  EXPECT_TRUE(merge.verify);
  EXPECT_FALSE(merge.overwrite || merge.dry_run || merge.map.lora.what == LoraChoice::What::drop || merge.map.is_value_model ||
               merge.map.tie_word_embedding);
}

TEST(Merge, TakesEveryOption) {
  const CommandLine line = merged(
      "--model-type qwen2 --hf-model-path h --custom-mapping m.json --dtype float16 --tie-word-embedding --is-value-model "
      "--num-attention-heads 16 --head_dim=8 "
      "--lora drop --like l --fill-missing-from f --allow-missing x.* --allow-missing y --drop [ab],c --max-shard-size 5GiB "
      "--output-format safetensors --stage 1 "
      "--stage-layers 3 --io collective --mpi-info a=b=c --mpi-info d=e --dry-run --ranks 64 --overwrite --no-verify --report r.json "
      "--num-threads 8 "
      "--buffer-size 64MiB --json --verbose");
  const MergeOptions& merge = line.merge;
  EXPECT_EQ(merge.map.model_type, "qwen2");
  EXPECT_EQ(merge.hf_config, "h");
  EXPECT_EQ(merge.custom_mapping_path, "m.json");
  EXPECT_EQ(merge.map.dtype.kind, DTypeChoice::Kind::fixed);
  EXPECT_EQ(merge.map.dtype.fixed, DType::f16);
  EXPECT_TRUE(merge.map.tie_word_embedding && merge.map.is_value_model && merge.map.lora.what == LoraChoice::What::drop);
  EXPECT_EQ(merge.config_overrides, (std::vector<std::pair<std::string, std::uint64_t>>{{"num_attention_heads", 16}, {"head_dim", 8}}));
  EXPECT_EQ(merge.like_dir, "l");
  EXPECT_EQ(merge.fill_missing_from, "f");
  EXPECT_EQ(merge.map.allow_missing, (std::vector<std::string>{"x.*", "y"}));
  EXPECT_EQ(merge.map.drop, std::vector<std::string>{"[ab],c"});
  EXPECT_EQ(merge.max_shard_bytes, 5'368'709'120U);
  EXPECT_EQ(merge.stage, 1);
  EXPECT_EQ(merge.stage_layers, 3U);
  EXPECT_EQ(merge.io, IoMode::collective);
  EXPECT_EQ(merge.mpi_hints, (std::vector<std::pair<std::string, std::string>>{{"a", "b=c"}, {"d", "e"}}));
  EXPECT_TRUE(merge.dry_run && merge.overwrite && !merge.verify);
  EXPECT_EQ(merge.dry_run_ranks, 64);
  EXPECT_EQ(merge.report_path, "r.json");
  EXPECT_EQ(merge.input.threads, 8);
  EXPECT_EQ(merge.input.buffer_bytes, 67'108'864U);
  EXPECT_TRUE(line.json);
  EXPECT_EQ(line.verbosity, Verbosity::verbose);
}

TEST(Merge, AcceptsVerlsOptionsThatMeanNothingHere) {
  const CommandLine line = merged("--trust-remote-code --use_cpu_initialization --private");
  ASSERT_EQ(line.notes.size(), 3U);
  EXPECT_EQ(line.notes[1], "--use-cpu-initialization has no effect here");
}

TEST(Test, TakesAFolderOrShards) {
  const TestOptions folder = parsed("test --merged-dir m --test-hf-dir r --atol 0.5 --rtol 0 --like-dtype").test;
  EXPECT_EQ(folder.merged_dir, "m");
  EXPECT_EQ(folder.test_hf_dir, "r");
  EXPECT_EQ(folder.tolerance.atol, 0.5);
  EXPECT_EQ(folder.tolerance.rtol, 0);
  EXPECT_TRUE(folder.like_dtype);
  EXPECT_EQ(parsed("test --local_dir a --test_hf_dir r --backend fsdp").test.input.local_dirs, std::vector<std::string>{"a"});
  EXPECT_EQ(parsed("test --merged-dir m --test-hf-dir r").test.tolerance.atol, 1e-5);
  expect_usage("test --test-hf-dir r", "--merged-dir");
  expect_usage("test --local-dir a --merged-dir m --test-hf-dir r", "--merged-dir");
  expect_usage("test --merged-dir m", "--test-hf-dir");
  expect_usage("test --merged-dir m --test-hf-dir r --atol -1", "--atol");
  expect_usage("test --merged-dir m --test-hf-dir r --rtol nan", "--rtol");
}

TEST(Inspect, TakesAPathOrListsFamilies) {
  EXPECT_EQ(parsed("inspect p --json").inspect_path, "p");
  EXPECT_EQ(parsed("inspect p").command, Command::inspect);
  EXPECT_EQ(parsed("inspect --families").command, Command::families);
  expect_usage("inspect", "path");
}

TEST(Help, IsText) {
  EXPECT_EQ(parsed("--version").command, Command::version);
  const CommandLine all = parsed("--help");
  EXPECT_EQ(all.command, Command::help);
  EXPECT_NE(all.help.find("inspect"), std::string::npos);
  const CommandLine merge = parsed("merge --help");
  EXPECT_EQ(merge.command, Command::help);
  EXPECT_NE(merge.help.find("--max-shard-size"), std::string::npos);
}

TEST(Usage, WhatIsMissingIsNamedWithTheHelpOfTheCommand) {
  for (const char* command : {"merge", "check", "test --merged-dir x", "merge-lora", "extract-lora --local-dir a"}) {
    const std::string name = words(command).front();
    expect_usage(command, " is required; see unshard " + name + " --help");
  }
}

TEST(Usage, IsRefusedInOneLineThatNamesTheMistake) {
  expect_usage("", "command");
  expect_usage("bogus", "'bogus'");
  expect_usage("--json", "");
  expect_usage("merge --local-dir a", "--target-dir");
  expect_usage("merge --target-dir t", "--local-dir");
  expect_usage("check", "--local-dir");
  expect_usage("check --local-dir", "--local-dir");
  expect_usage("check --local-dir a --bogus", "--bogus");
  expect_usage("check --local-di a", "--local-di");
  expect_usage("check --local-dir a --verbose --quiet", "--quiet");
  expect_usage("check --local-dir a --backend pytorch", "'pytorch'");
  expect_usage("merge --local-dir a --target-dir t --target-dir u", "--target-dir");
  for (const char* wrong : {"--dtype int8",
                            "--lora keep",
                            "--stage 3",
                            "--io mmap",
                            "--mpi-info a",
                            "--mpi-info =b",
                            "--mpi-info a=",
                            "--mpi-info cb_buffer_size=0",
                            "--mpi-info cb_nodes=-3",
                            "--mpi-info striping_unit=1k",
                            "--num-threads 0",
                            "--num-threads x",
                            "--num-threads 1000000",
                            "--buffer-size 12XB",
                            "--buffer-size -1",
                            "--max-shard-size 0",
                            "--max-shard-size 1.5GB",
                            "--head-dim 0",
                            "--head-dim -4",
                            "--ranks 4",
                            "--stage-layers 4",
                            "--stage-layers -4 --stage 1",
                            "--output-format gguf"}) {
    const std::string name = std::string(wrong).substr(0, std::string(wrong).find(' '));
    expect_usage(std::string("merge --local-dir a --target-dir t ") + wrong, name);
  }
  EXPECT_EQ(refusal_of({"merge", "--local-dir", "a", "--target-dir", ""}).code, ErrorCode::usage);
  EXPECT_EQ(refusal_of({"check", "--local-dir", "a", "--x\nunshard: error"}).text.find('\n'), std::string::npos);
}

TEST(LaterFeatures, AreRefusedByName) {
  for (const char* option : {"--quantize fp8-block", "--quantize=fp8-block", "--hf-upload-path org/name", "--hf_upload_path=org/name",
                             "--backend megatron", "--backend dcp", "--backend deepspeed", "--backend accelerate"}) {
    std::string name = std::string(option).substr(0, std::string(option).find_first_of(" ="));
    std::replace(name.begin(), name.end(), '_', '-');
    expect_unsupported(std::string("merge --local-dir a --target-dir t ") + option, name);
  }
  expect_unsupported("merge --local-dir a --target-dir t --hf-upload-path x", "hf upload");
  expect_unsupported("test --merged-dir m --test-hf-dir r --html p.html", "--html");
  EXPECT_EQ(parsed("check --local-dir a --backend hf").check.input.backend, "hf");
}

TEST(Lora, IsTakenFromEveryCommand) {
  const MergeOptions merge = merged("--lora fold --lora_alpha=16").merge;
  EXPECT_EQ(merge.map.lora.what, LoraChoice::What::fold);
  EXPECT_EQ(merge.lora_alpha, 16.0);
  EXPECT_EQ(merged("").merge.map.lora.what, LoraChoice::What::extract);
  const ExtractLoraOptions stored = parsed("extract-lora --local-dir a --target-dir t --base-model org/b --lora-alpha 8").extract_lora;
  EXPECT_EQ(stored.base_model, "org/b");
  EXPECT_EQ(stored.merge.lora_alpha, 8.0);
  const ExtractLoraOptions difference =
      parsed("extract-lora --finetuned f --base-model b --target-dir t --rank 16 --dtype bfloat16").extract_lora;
  EXPECT_EQ(difference.rank, 16U);
  const MergeLoraOptions folded = parsed(
                                      "merge-lora --base-model b --lora-adapter x,y --lora-adapter z --target-dir t --merge-method "
                                      "weighted --adapter-weights 0.5,-0.25,1e-3")
                                      .merge_lora;
  EXPECT_EQ(folded.merge.input.local_dirs, std::vector<std::string>{"b"});
  ASSERT_EQ(folded.merge.adapters.size(), 3U);
  EXPECT_EQ(folded.merge.adapters[2].path, "z");
  EXPECT_EQ(folded.weights, (std::vector<double>{0.5, -0.25, 1e-3}));
  EXPECT_TRUE(parsed("merge-lora --base-model b --lora-adapter x --target-dir t --output adapter").merge_lora.writes_adapter);
}

TEST(Merge, AnHdf5FileHoldsAllParameters) {
  const Abilities with_hdf5{.formats = {"fsdp"}, .outputs = {"safetensors", "hdf5"}};
  for (const char* options : {"--output-format hdf5 --max-shard-size 1GB", "--max-shard-size 1GB --output-format hdf5"}) {
    const Refusal refusal = refusal_of(words(std::string("merge --local-dir a --target-dir t ") + options), with_hdf5);
    EXPECT_EQ(refusal.code, ErrorCode::usage) << options;
    EXPECT_EQ(refusal.text.find("usage: --max-shard-size"), 0U) << refusal.text;
  }
}

TEST(Merge, ADryRunWritesNoReport) {
  const auto notes = parsed("merge --local-dir a --target-dir t --dry-run --report r").notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0].find("--report has no effect here"), 0U) << notes[0];
  EXPECT_TRUE(parsed("merge --local-dir a --target-dir t --report r").notes.empty());
}

TEST(Lora, AnAdapterIsOneFileOfSafetensors) {
  expect_unsupported("extract-lora --local-dir a --target-dir t --output-format safetensors", "--output-format");
  expect_unsupported("extract-lora --local-dir a --target-dir t --max-shard-size 1GB", "--max-shard-size");
  expect_unsupported("merge-lora --base-model b --lora-adapter x --target-dir t --output adapter --max-shard-size 1GB", "--max-shard-size");
}

TEST(Test, TellsWhatHasNoEffectOnAMergedFolder) {
  const CommandLine line = parsed("test --merged-dir m --test-hf-dir r --drop x --model-type qwen2");
  EXPECT_EQ(line.notes, (std::vector<std::string>{"--model-type has no effect here: a merged folder is compared as it is",
                                                  "--drop has no effect here: a merged folder is compared as it is"}));
  EXPECT_TRUE(parsed("test --local-dir a --test-hf-dir r --drop x").notes.empty());
}

TEST(Lora, WhatDoesNotFitIsAUsageError) {
  expect_usage("merge --local-dir a --target-dir t --lora-alpha 0", "--lora-alpha");
  expect_usage("extract-lora --target-dir t", "--local-dir");
  expect_usage("extract-lora --local-dir a --finetuned f --target-dir t", "--finetuned");
  expect_usage("extract-lora --finetuned f --base-model b --target-dir t", "--rank");
  expect_usage("extract-lora --local-dir a --target-dir t --rank 4", "--rank");
  expect_usage("merge-lora --base-model b --target-dir t", "--lora-adapter");
  for (const char* wrong : {"--merge-method weighted", "--merge-method weighted --adapter-weights 1", "--adapter-weights 1,2",
                            "--merge-method weighted --adapter-weights 1,x", "--merge-method weighted --adapter-weights 1,",
                            "--merge-method ties", "--output onnx"}) {
    expect_usage(std::string("merge-lora --base-model b --lora-adapter x,y --target-dir t ") + wrong, "--");
  }
  expect_unsupported("test --local-dir a --test-hf-dir r --lora fold", "--lora");
}

TEST(Sizes, HaveDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("5GB", "--x"), 5'000'000'000U);
  EXPECT_EQ(parse_size("1MiB", "--x"), 1'048'576U);
  EXPECT_EQ(parse_size("256mib", "--x"), 268'435'456U);
  EXPECT_EQ(parse_size("4KB", "--x"), 4000U);
  EXPECT_EQ(parse_size("2T", "--x"), 2'000'000'000'000U);
  EXPECT_EQ(parse_size("17", "--x"), 17U);
  EXPECT_EQ(parse_size("18446744073709551615", "--x"), 18446744073709551615U);
  for (const char* wrong :
       {"", "GB", "1.5GB", "-1", "+1", "5 GB", "5GBs", "18446744073709551616", "18446744073709551615KB", "0", "0GB", "0x10"}) {
    EXPECT_THROW((void)parse_size(wrong, "--x"), Error) << wrong;
  }
}

}  // namespace
}  // namespace unshard
