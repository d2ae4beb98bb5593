// The safetensors output against files and rules of the reference writers (safetensors 0.8, huggingface_hub 2.4, transformers 5).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "unshard/error.h"
#include "unshard/output_format.h"

namespace unshard {
namespace {

Target target(std::string name, DType dtype, Shape shape) {
  return {std::move(name), dtype, shape, {}};
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string header_json(const OutputFile& file) {
  std::string json = file.header.substr(8);
  json.erase(json.find_last_not_of(' ') + 1);
  return json;
}

/// The tensors that a file written by the reference holds.
Targets targets_in(const std::string& file) {
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(file[static_cast<std::size_t>(i)]);
  Targets targets;
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    std::vector<std::uint64_t> shape = entry["shape"];
    targets.targets.push_back(target(name, *dtype_from_safetensors(entry["dtype"].get<std::string>()), Shape(shape)));
  }
  std::reverse(targets.targets.begin(), targets.targets.end());  // an order that is surely not the file's
  return targets;
}

std::vector<std::string> file_of_each(const Targets& targets, const Layout& layout) {
  std::vector<std::string> files(targets.targets.size());
  for (const PlacedTarget& placed : layout.placed) files[placed.target] = layout.files[placed.file].name.substr(5, 6);
  return files;
}

const OutputFormat& output() {
  return output_named("safetensors");
}

TEST(SafetensorsLayout, HeadersAreThoseOfTheReferenceWriter) {
  int compared = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(std::filesystem::path(UNSHARD_CASES) / "fsdp")) {
    const std::string folder = entry.path().parent_path().filename().string();
    if (entry.path().filename() != "model.safetensors" || !folder.starts_with("expected")) continue;
    const std::string file = contents(entry.path());
    if (file.find(R"("__metadata__":{"format":"pt"})") == std::string::npos) continue;
    const Layout layout = output().lay_out(targets_in(file), {});
    ASSERT_EQ(layout.files.size(), 1u);
    const OutputFile& ours = layout.files[0];
    EXPECT_EQ(ours.header, file.substr(0, ours.header.size())) << entry.path();
    EXPECT_EQ(ours.size_bytes, file.size()) << entry.path();
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

// safetensors.torch.save of one tensor of each type, [2, 4] (F4: [2, 4] pairs), metadata {"format": "pt"}.
TEST(SafetensorsLayout, EveryTypeLiesWhereTheReferencePutsIt) {
  Targets targets;
  for (const DTypeInfo& row : dtype_table()) {
    if (!row.safetensors.empty()) targets.targets.push_back(target(std::string(row.name), row.dtype, {2, 4}));
  }
  const Layout layout = output().lay_out(targets, {});
  EXPECT_EQ(
      header_json(layout.files[0]),
      R"({"__metadata__":{"format":"pt"},"uint64":{"dtype":"U64","shape":[2,4],"data_offsets":[0,64]},"int64":{"dtype":"I64","shape":[2,4],"data_offsets":[64,128]},"float64":{"dtype":"F64","shape":[2,4],"data_offsets":[128,192]},"complex64":{"dtype":"C64","shape":[2,4],"data_offsets":[192,256]},"float32":{"dtype":"F32","shape":[2,4],"data_offsets":[256,288]},"uint32":{"dtype":"U32","shape":[2,4],"data_offsets":[288,320]},"int32":{"dtype":"I32","shape":[2,4],"data_offsets":[320,352]},"bfloat16":{"dtype":"BF16","shape":[2,4],"data_offsets":[352,368]},"float16":{"dtype":"F16","shape":[2,4],"data_offsets":[368,384]},"uint16":{"dtype":"U16","shape":[2,4],"data_offsets":[384,400]},"int16":{"dtype":"I16","shape":[2,4],"data_offsets":[400,416]},"float8_e5m2fnuz":{"dtype":"F8_E5M2FNUZ","shape":[2,4],"data_offsets":[416,424]},"float8_e4m3fnuz":{"dtype":"F8_E4M3FNUZ","shape":[2,4],"data_offsets":[424,432]},"float8_e8m0fnu":{"dtype":"F8_E8M0","shape":[2,4],"data_offsets":[432,440]},"float8_e4m3fn":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[440,448]},"float8_e5m2":{"dtype":"F8_E5M2","shape":[2,4],"data_offsets":[448,456]},"int8":{"dtype":"I8","shape":[2,4],"data_offsets":[456,464]},"uint8":{"dtype":"U8","shape":[2,4],"data_offsets":[464,472]},"float4_e2m1fn_x2":{"dtype":"F4","shape":[2,8],"data_offsets":[472,480]},"bool":{"dtype":"BOOL","shape":[2,4],"data_offsets":[480,488]}})");
}

// safetensors.torch.save({'bé"\\\n\x01\x7f/': 1 element, 'z': [0, 3], '': [], 'a': [0], '😀': [2]}).
TEST(SafetensorsLayout, NamesAreEscapedAsTheReferenceDoes) {
  Targets targets;
  targets.targets = {target("b\xc3\xa9\"\\\n\x01\x7f/", DType::f32, {1}), target("z", DType::f32, {0, 3}), target("", DType::f32, {}),
                     target("a", DType::f32, {0}), target("\xf0\x9f\x98\x80", DType::f32, {2})};
  const Layout layout = output().lay_out(targets, {});
  EXPECT_EQ(
      header_json(layout.files[0]),
      R"({"__metadata__":{"format":"pt"},"":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"b)"
      "\xc3\xa9"
      R"(\"\\\n\u0001)"
      "\x7f"
      R"(/":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"z":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},")"
      "\xf0\x9f\x98\x80"
      R"(":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})");
  EXPECT_EQ(layout.files[0].header.size(), 328u);
}

TEST(SafetensorsLayout, NoTensorsGiveOneFileWithAHeader) {
  const Layout layout = output().lay_out({}, {});
  ASSERT_EQ(layout.files.size(), 1u);
  EXPECT_EQ(layout.files[0].header, std::string(" \0\0\0\0\0\0\0", 8) + R"({"__metadata__":{"format":"pt"}})");
}

// The example in huggingface_hub's docstring, scaled down: sizes 6, 6, 2, 6, 2, 2 with a limit of 10.
TEST(SafetensorsLayout, FilesAreSplitInTheOrderOfTheTargets) {
  Targets targets;
  const std::uint64_t sizes[] = {6, 6, 2, 6, 2, 2};
  for (std::size_t i = 0; i < 6; ++i) targets.targets.push_back(target(std::string(1, static_cast<char>('z' - i)), DType::u8, {sizes[i]}));
  const Layout layout = output().lay_out(targets, {.max_shard_bytes = 10});
  ASSERT_EQ(layout.files.size(), 3u);
  EXPECT_EQ(layout.files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(file_of_each(targets, layout), (std::vector<std::string>{"-00001", "-00002", "-00002", "-00003", "-00003", "-00003"}));
}

TEST(SafetensorsLayout, ATensorAboveTheLimitGetsItsOwnFileAndTheOpenOneStaysOpen) {
  Targets targets;
  targets.targets = {target("a", DType::u8, {4}), target("huge", DType::u8, {11}), target("b", DType::u8, {6}),
                     target("c", DType::u8, {1})};
  const Layout layout = output().lay_out(targets, {.max_shard_bytes = 10});
  EXPECT_EQ(file_of_each(targets, layout), (std::vector<std::string>{"-00002", "-00001", "-00002", "-00003"}));
}

// As split_torch_state_dict_into_shards keeps views of one storage together.
TEST(SafetensorsLayout, ABlockStaysInOneFile) {
  Targets targets;
  targets.targets = {target("a", DType::u8, {4}), target("e0", DType::u8, {4}), target("b", DType::u8, {1}), target("e1", DType::u8, {4})};
  const Layout layout = output().lay_out(targets, {.max_shard_bytes = 10, .block_by_target = {0, 1, 0, 1}});
  EXPECT_EQ(file_of_each(targets, layout), (std::vector<std::string>{"-00001", "-00002", "-00002", "-00002"}));
  const Layout small = output().lay_out(targets, {.max_shard_bytes = 7, .block_by_target = {0, 1, 0, 1}});
  EXPECT_EQ(file_of_each(targets, small), (std::vector<std::string>{"-00002", "-00001", "-00002", "-00001"}));
}

TEST(SafetensorsLayout, FilesCanBeGiven) {
  Targets targets;
  targets.targets = {target("a", DType::u8, {4}), target("b", DType::u8, {6}), target("c", DType::u8, {1})};
  const Layout layout = output().lay_out(targets, {.max_shard_bytes = 100, .file_by_target = {1, 0, 1}});
  EXPECT_EQ(file_of_each(targets, layout), (std::vector<std::string>{"-00002", "-00001", "-00002"}));
}

TEST(SafetensorsLayout, ALimitThatIsJustReachedDoesNotSplit) {
  Targets targets;
  targets.targets = {target("a", DType::u8, {4}), target("b", DType::u8, {6})};
  const Layout layout = output().lay_out(targets, {.max_shard_bytes = 10});
  ASSERT_EQ(layout.files.size(), 1u);
  EXPECT_EQ(layout.files[0].name, "model.safetensors");
  EXPECT_TRUE(output().indexes(targets, layout).empty());
}

TEST(SafetensorsLayout, AHeaderAboveTheHubsLimitStartsAnotherFile) {
  Targets targets;
  for (int i = 0; i < 300; ++i) targets.targets.push_back(target(std::to_string(i) + std::string(100'000, 'n'), DType::u8, {1}));
  const Layout layout = output().lay_out(targets, {});
  ASSERT_EQ(layout.files.size(), 2u);
  for (const OutputFile& file : layout.files) EXPECT_LE(file.header.size(), 25'000'000u);
}

// json.dumps({"metadata": {"total_parameters": 3, "total_size": 6}, "weight_map": {…}}, indent=2, sort_keys=True) + "\n" in Python.
TEST(SafetensorsLayout, TheIndexIsThatOfSavePretrained) {
  Targets targets;
  targets.targets = {target("z\xc3\xa9\x7f", DType::bf16, {2}), target("a", DType::bf16, {1}), target("A", DType::bf16, {0})};
  const Layout layout = output().lay_out(targets, {.max_shard_bytes = 4});
  const std::vector<SmallFile> indexes = output().indexes(targets, layout);
  ASSERT_EQ(indexes.size(), 1u);
  EXPECT_EQ(indexes[0].name, "model.safetensors.index.json");
  EXPECT_EQ(indexes[0].content, R"({
  "metadata": {
    "total_parameters": 3,
    "total_size": 6
  },
  "weight_map": {
    "A": "model-00002-of-00002.safetensors",
    "a": "model-00002-of-00002.safetensors",
    "z\u00e9\u007f": "model-00001-of-00002.safetensors"
  }
}
)");
}

void expect_error(const Targets& targets, ErrorCode code, const std::string& name) {
  try {
    (void)output().lay_out(targets, {});
    ADD_FAILURE() << "no error for " << name;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
  }
}

TEST(SafetensorsLayout, WhatSafetensorsCannotHoldIsRefusedByName) {
  expect_error({{target("wave", DType::c128, {2})}, {}}, ErrorCode::unsupported, "wave");
  expect_error({{target("half", DType::c32, {2})}, {}}, ErrorCode::unsupported, "half");
  expect_error({{target("__metadata__", DType::f32, {2})}, {}}, ErrorCode::unsupported, "__metadata__");
  expect_error({{target("scalar_pair", DType::f4_x2, {})}, {}}, ErrorCode::unsupported, "scalar_pair");
  expect_error({{target("bad\xff", DType::f32, {2})}, {}}, ErrorCode::bad_input, "UTF-8");
  expect_error({{target("wide", DType::f64, {std::uint64_t{1} << 62})}, {}}, ErrorCode::bad_input, "wide");
}

TEST(SafetensorsLayout, AnUnknownFormatIsAUsageErrorThatNamesTheKnownOnes) {
  try {
    (void)output_named("ggml");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("safetensors"), std::string::npos);
  }
}

}  // namespace
}  // namespace unshard
