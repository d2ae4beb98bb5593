#include "formats/hf.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "formats/hf_index.h"
#include "support/memory_file.h"
#include "support/safetensors_text.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using testing::MemoryFile;
using testing::safetensors;

/// A folder `m` (and others) with files of the given content.
Tree tree_of(const std::map<std::string, std::string>& files, std::vector<std::string> roots = {"m"}) {
  Tree tree;
  tree.roots = std::move(roots);
  for (const auto& [path, content] : files) {
    TreeEntry entry;
    entry.status.size_bytes = content.size();
    entry.nodes = {0};
    if (path.ends_with(".json")) entry.content = content;
    tree.entries[path] = entry;
    for (std::string folder = parent_path(path); folder != "."; folder = parent_path(folder))
      tree.entries[folder].status.kind = FileKind::folder;
  }
  return tree;
}

std::vector<std::string> labels(const Source& source) {
  std::vector<std::string> out;
  for (const ShardFile& file : source.files) out.push_back(file.label);
  return out;
}

/// All findings as lines.
std::string text_of(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings)
    out += (finding.severity == Severity::error ? "error " : "note ") + finding.subject + ": " + finding.text + "\n";
  return out;
}

std::string failure(const Tree& tree) {
  try {
    (void)hf_format().describe(tree, tree.roots);
    return "";
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.what();
  }
}

const std::string index_of_two = R"({"metadata":{"total_size":12},"weight_map":{"b":"model-2.safetensors","a":"model-1.safetensors"}})";

TEST(HfFormat, RecognisesWeightsAndNotJustAConfig) {
  const auto recognised = [](const std::string& name) { return hf_format().recognises(tree_of({{"m/" + name, "x"}}), "m"); };
  EXPECT_TRUE(recognised("model.safetensors"));
  EXPECT_TRUE(recognised("diffusion_pytorch_model.safetensors"));
  EXPECT_TRUE(recognised("model.safetensors.index.json"));
  EXPECT_TRUE(recognised("pytorch_model-00001-of-00002.bin"));
  EXPECT_FALSE(recognised("config.json"));
  EXPECT_FALSE(recognised("adapter_model.safetensors"));
  EXPECT_FALSE(recognised("model_world_size_2_rank_0.pt"));
  EXPECT_FALSE(recognised("pytorch_model_fsdp.bin"));
  EXPECT_FALSE(recognised("huggingface/model.safetensors")) << "a folder below is not this folder";
}

TEST(HfFormat, TakesOnlyTheFilesOfTheIndex) {
  const Source got = hf_format().describe(tree_of({{"m/model.safetensors.index.json", index_of_two},
                                                   {"m/model-1.safetensors", "x"},
                                                   {"m/model-2.safetensors", "x"},
                                                   {"m/old.safetensors", "x"},
                                                   {"m/adapter_model.safetensors", "x"}}),
                                          {"m"});
  EXPECT_EQ(labels(got), (std::vector<std::string>{"model-1.safetensors", "model-2.safetensors"}));
  EXPECT_EQ(text_of(got.findings),
            "note old.safetensors: the index model.safetensors.index.json does not name this file; it was not read\n");
  EXPECT_EQ(got.stated_bytes, 12U);
  ASSERT_EQ(got.index.size(), 2U);
  EXPECT_EQ(got.index[0].name, "a");
  EXPECT_EQ(got.files[got.index[0].file].label, "model-1.safetensors");
}

TEST(HfFormat, NamesAFileThatTheIndexWantsAndItsTensors) {
  const Source got =
      hf_format().describe(tree_of({{"m/model.safetensors.index.json", index_of_two}, {"m/model-1.safetensors", "x"}}), {"m"});
  EXPECT_EQ(text_of(got.findings),
            "error model-2.safetensors: the index model.safetensors.index.json names this file for 1 tensor (b), but it is missing; copy "
            "it here\n");
}

TEST(HfFormat, RefusesAnIndexThatContradictsASingleFile) {
  const Source got = hf_format().describe(tree_of({{"m/model.safetensors.index.json", index_of_two}, {"m/model.safetensors", "x"}}), {"m"});
  EXPECT_NE(text_of(got.findings).find("error model.safetensors: the index model.safetensors.index.json does not name this file"),
            std::string::npos);
}

TEST(HfFormat, PrefersTheSingleFile) {
  const Source got = hf_format().describe(tree_of({{"m/model.safetensors", "x"}, {"m/other.safetensors", "x"}}), {"m"});
  EXPECT_EQ(labels(got), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(text_of(got.findings), "note other.safetensors: lies beside the model's weights; it was not read\n");
}

TEST(HfFormat, NamesMissingPartsWithoutAnIndex) {
  const Source got =
      hf_format().describe(tree_of({{"m/model-00001-of-00004.safetensors", "x"}, {"m/model-00004-of-00004.safetensors", "x"}}), {"m"});
  EXPECT_EQ(text_of(got.findings), "error model: missing files 2-3 of 4; copy them here\n");
  const Source from_zero = hf_format().describe(tree_of({{"m/model-00000-of-00001.safetensors", "x"}}), {"m"});
  EXPECT_EQ(text_of(from_zero.findings), "");
}

TEST(HfFormat, UnitesFoldersAndRefusesTwoFilesOfOneName) {
  const std::map<std::string, std::string> halves{{"a/model.safetensors.index.json", index_of_two},
                                                  {"a/model-1.safetensors", "x"},
                                                  {"b/model-2.safetensors", "x"},
                                                  {"b/model-1.safetensors", "x"}};
  const Source got = hf_format().describe(tree_of(halves, {"a", "b"}), {"a", "b"});
  ASSERT_EQ(labels(got), (std::vector<std::string>{"model-1.safetensors", "model-2.safetensors"}));
  ASSERT_EQ(got.files[0].copies.size(), 1U);
  EXPECT_EQ(got.files[0].copies[0].path, "b/model-1.safetensors");
  EXPECT_EQ(text_of(got.findings), "");
  auto different = halves;
  different["b/model-1.safetensors"] = "xx";
  EXPECT_TRUE(
      failure(tree_of(different, {"a", "b"})).starts_with("bad_input: a/model-1.safetensors has 1 bytes and b/model-1.safetensors has 2"));
}

TEST(HfFormat, FindsPickledWeights) {
  const Source single = hf_format().describe(tree_of({{"m/pytorch_model.bin", "x"}, {"m/training_args.bin", "x"}}), {"m"});
  EXPECT_EQ(labels(single), std::vector<std::string>{"pytorch_model.bin"});
  const std::string index = R"({"weight_map":{"a":"pytorch_model-00001-of-00002.bin","b":"pytorch_model-00002-of-00002.bin"}})";
  const Source shards = hf_format().describe(
      tree_of({{"m/pytorch_model.bin.index.json", index}, {"m/pytorch_model-00001-of-00002.bin", "x"}, {"m/pytorch_model-00002-of-00002.bin", "x"}}),
      {"m"});
  EXPECT_EQ(labels(shards), (std::vector<std::string>{"pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"}));
  EXPECT_EQ(shards.index_label, "pytorch_model.bin.index.json");
  const Source parts = hf_format().describe(tree_of({{"m/pytorch_model-00001-of-00002.bin", "x"}}), {"m"});
  EXPECT_EQ(text_of(parts.findings), "error pytorch_model: missing files 2 of 2; copy them here\n");
}

TEST(HfFormat, PrefersSafetensorsToPickledWeightsAsTransformersDoes) {
  const Source both = hf_format().describe(tree_of({{"m/model.safetensors", "x"}, {"m/pytorch_model.bin", "x"}}), {"m"});
  EXPECT_EQ(labels(both), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(text_of(both.findings), "note pytorch_model.bin: lies beside the model's weights; it was not read\n");
  const Source stray = hf_format().describe(tree_of({{"m/values.safetensors", "x"}, {"m/pytorch_model.bin", "x"}}), {"m"});
  EXPECT_EQ(labels(stray), std::vector<std::string>{"pytorch_model.bin"}) << "no loader's usual name";
}

TEST(HfFormat, KnowsCopiesOnOtherNodesOfAFileInAnotherFolder) {
  Tree tree = tree_of({{"a/model.safetensors", "x"}, {"b/model.safetensors", "x"}}, {"a", "b"});
  tree.entries["b/model.safetensors"].other_copies = {{1, 2}};
  const Source got = hf_format().describe(tree, {"a", "b"});
  ASSERT_EQ(got.files.size(), 1U);
  ASSERT_EQ(got.files[0].copies.size(), 2U);
  EXPECT_EQ(got.files[0].copies[1].nodes, (std::vector<std::uint32_t>{1, 2}));
  tree.entries["b/model.safetensors"].problem = "has 1 bytes on x and 2 bytes on y";
  EXPECT_NE(failure(tree).find("b/model.safetensors: has 1 bytes on x"), std::string::npos);
}

TEST(HfFormat, DoesNotFollowAnIndexOutOfTheFolder) {
  for (const std::string name :
       {"../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "", ".", "a//b", "a/", "./a", "a/\\u0000b"}) {
    const std::string got = failure(tree_of({{"m/model.safetensors.index.json", R"({"weight_map":{"w":")" + name + R"("}})"}}));
    EXPECT_TRUE(got.starts_with("bad_input: model.safetensors.index.json: the index names the file")) << name << " / " << got;
  }
}

TEST(HfFormat, RefusesAMalformedIndex) {
  for (const std::string text :
       {"", "{", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":[]})", R"({"weight_map":{"w":1}})", R"({"weight_map":{"w":["f"]}})",
        R"({"weight_map":{"w":"f","w":"f"}})", R"({"weight_map":{"w":"f"},"weight_map":{"v":"f"}})"}) {
    EXPECT_TRUE(
        failure(tree_of({{"m/model.safetensors.index.json", text}})).starts_with("bad_input: model.safetensors.index.json: the index"))
        << text;
  }
}

TEST(HfFormat, ReadsAFileAndComparesItWithTheIndex) {
  Source source;
  source.files = {{"m/1", "1.safetensors", 0, 0, {0}, {}}, {"m/2", "2.safetensors", 0, 0, {0}, {}}};
  source.index_label = "i.json";
  source.index = {{"elsewhere", 1}, {"ghost", 0}, {"here", 0}};
  const std::string header =
      R"({"here":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"orphan":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},"elsewhere":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  MemoryFile file(safetensors(header, std::string(9, 'x')));
  const ShardContents got = hf_format().read_headers(source, 0, file);
  ASSERT_EQ(got.pieces.size(), 3U);
  EXPECT_EQ(got.pieces[0].name, "here");
  ASSERT_EQ(got.pieces[0].chunks.size(), 1U);
  EXPECT_EQ(got.pieces[0].chunks[0].position, 8 + header.size());
  EXPECT_EQ(got.pieces[0].chunks[0].strides, (Shape{1, 1}));
  EXPECT_EQ(got.pieces[0].chunks[0].record_bytes, 8U);
  EXPECT_FALSE(got.pieces[0].chunks[0].plain);
  EXPECT_TRUE(got.pieces[1].chunks.empty()) << "nothing is stored of a tensor without elements";
  const std::string findings = text_of(got.findings);
  EXPECT_NE(findings.find("note 1.safetensors: has no __metadata__"), std::string::npos) << findings;
  EXPECT_NE(findings.find("error 1.safetensors: lacks 1 tensor that the index i.json says it holds: ghost"), std::string::npos)
      << findings;
  EXPECT_NE(findings.find("error 1.safetensors: holds 1 tensor that the index i.json does not name, so that no loader reads them: orphan"),
            std::string::npos)
      << findings;
  EXPECT_NE(findings.find("error elsewhere: is in 1.safetensors, but the index i.json says it is in 2.safetensors"), std::string::npos)
      << findings;
}

}  // namespace
}  // namespace unshard
