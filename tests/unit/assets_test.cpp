// Which files beside the weights are copied, and which --overwrite removes.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "support/memory_file_system.h"
#include "unshard/error.h"
#include "unshard/publish.h"

namespace unshard {
namespace {

using test::Call;
using test::MemoryFileSystem;

std::vector<std::string> names(const std::vector<Asset>& assets) {
  std::vector<std::string> result;
  for (const Asset& asset : assets) result.push_back(asset.name);
  return result;
}

void expect_bad_input(FileSystem& files, const std::string& folder, const std::string& says) {
  try {
    (void)list_assets(files, folder);
    ADD_FAILURE() << "no error; expected one that says " << says;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_input);
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

TEST(Assets, EverythingButWeightsIndexesAdaptersAndTrainingStateIsCopied) {
  MemoryFileSystem files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "merges.txt", "qwen.tiktoken", "chat_template.jinja", "modeling_x.py",
                           "README.md", "LICENSE", "preprocessor_config.json", "odd.file", "additional_chat_templates/tool.jinja"}) {
    files.put(std::string("/hf/") + name, "x");
  }
  for (const char* name : {"config.json",
                           "model.safetensors",
                           "pytorch_model.bin",
                           "model_world_size_2_rank_0.pt",
                           "a.pth",
                           "a.gguf",
                           "model.safetensors.index.json",
                           "pytorch_model.bin.index.json",
                           "consolidated.00.pth",
                           "consolidated.json",
                           "adapter_config.json",
                           "adapter_model.bin",
                           "training_args.bin",
                           "optimizer.state",
                           "scheduler.x",
                           "rng_state_0",
                           "trainer_state.json",
                           "zero_to_fp32.py",
                           "latest",
                           "fsdp_config.json",
                           "__0_0.distcp",
                           ".metadata",
                           ".gitattributes",
                           "model.safetensors.part",
                           "tf_model.h5"}) {
    files.put(std::string("/hf/") + name, "x");
  }
  files.put("/hf/onnx/model.json", "x");
  EXPECT_EQ(names(list_assets(files, "/hf")),
            (std::vector<std::string>{"LICENSE", "README.md", "additional_chat_templates/tool.jinja", "chat_template.jinja", "merges.txt",
                                      "modeling_x.py", "odd.file", "preprocessor_config.json", "qwen.tiktoken", "tokenizer.json",
                                      "tokenizer_config.json"}));
}

TEST(Assets, LinksAreFollowedAndDeadOnesAreNamed) {
  MemoryFileSystem files;
  files.put("/blobs/1", "{}");
  files.link("/hf/tokenizer.json", "/blobs/1");
  files.put("/hf/vocab.txt", "x");
  files.link("/hf/model.safetensors", "/blobs/gone");  // not copied, so it does not matter
  const std::vector<Asset> assets = list_assets(files, "/hf");
  EXPECT_EQ(names(assets), (std::vector<std::string>{"tokenizer.json", "vocab.txt"}));
  EXPECT_EQ(assets[0].path, "/hf/tokenizer.json");
  files.link("/hf/merges.txt", "/blobs/2");
  expect_bad_input(files, "/hf", "/hf/merges.txt");
}

TEST(Assets, ADeadLinkOnTheRealDiskIsNamed) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("unshard-assets-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << "{}";
  const auto files = posix_file_system();
  EXPECT_EQ(names(list_assets(*files, folder.string())), std::vector<std::string>{"tokenizer.json"});
  std::filesystem::create_symlink("nowhere", folder / "special_tokens_map.json");
  expect_bad_input(*files, folder.string(), "special_tokens_map.json");
  std::filesystem::remove_all(folder);
}

TEST(Assets, AFileThatCannotBeOpenedIsNamed) {
  MemoryFileSystem files;
  files.put("/hf/tokenizer.json", "{}");
  files.fail(Call::open_for_reading, "tokenizer.json");
  expect_bad_input(files, "/hf", "/hf/tokenizer.json");
}

TEST(Assets, AGenerationConfigMustBeAJsonObject) {
  for (const char* text : {"", "{", "[]", "null", "{\"a\": }", "not json", "{} {}"}) {
    MemoryFileSystem files;
    files.put("/hf/generation_config.json", text);
    expect_bad_input(files, "/hf", "generation_config.json");
  }
  MemoryFileSystem files;
  files.put("/hf/generation_config.json", " \n{\"eos_token_id\": [1, 2]}\n");
  EXPECT_EQ(list_assets(files, "/hf").size(), 1u);
  files.put("/hf/generation_config.json", std::string(1'000'000, '['));  // no deep recursion
  expect_bad_input(files, "/hf", "generation_config.json");
}

TEST(Assets, OurKindsAreThoseThatAMergeWritesOrCopies) {
  for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json",
                           "generation_config.json", "tokenizer.json", "vocab.json", "merges.txt", "chat_template.jinja",
                           "additional_chat_templates/a.jinja", "modeling_qwen.py", "pytorch_model-00001-of-00002.bin",
                           "pytorch_model.bin.index.json", "adapter_config.json", "preprocessor_config.json", "README.md"}) {
    EXPECT_TRUE(is_our_kind(name)) << name;
  }
  for (const char* name : {"notes.txt", "eval_results.json", "train.py", "run.log", "logs/config.json",
                           "additional_chat_templates/notes.txt", "plot.png", ".git"}) {
    EXPECT_FALSE(is_our_kind(name)) << name;
  }
}

}  // namespace
}  // namespace unshard
