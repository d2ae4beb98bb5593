#include "formats/safetensors_header.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "support/memory_file.h"
#include "support/safetensors_text.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using testing::MemoryFile;
using testing::safetensors;

SafetensorsHeader read(const std::string& content) {
  MemoryFile file(content);
  return read_safetensors_header(file, "m.safetensors");
}

/// The error that a file gives, as `code: text`; "" when it is read.
std::string failure(const std::string& content) {
  try {
    (void)read(content);
    return "";
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.what();
  }
}

/// One F32 tensor `a` of two elements with `fields` in place of its entry's text.
std::string with_entry(const std::string& entry) {
  return safetensors(R"({"a":)" + entry + "}", std::string(8, '\0'));
}

TEST(SafetensorsHeader, GivesTensorsInOrderOfTheirPlace) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const SafetensorsHeader got = read(safetensors(header, std::string(20, 'x')));
  ASSERT_EQ(got.tensors.size(), 2U);
  EXPECT_EQ(got.tensors[0].name, "a");
  EXPECT_EQ(got.tensors[0].dtype, DType::f32);
  EXPECT_EQ(got.tensors[0].position, 8 + header.size());
  EXPECT_EQ(got.tensors[1].name, "b");
  EXPECT_EQ(got.tensors[1].shape, (Shape{2, 3}));
  EXPECT_EQ(got.tensors[1].position, 8 + header.size() + 8);
  EXPECT_EQ(got.tensors[1].size_bytes, 12U);
  EXPECT_EQ(got.metadata.value().at("format"), "pt");
}

TEST(SafetensorsHeader, ReadsScalarsEmptyTensorsPaddingAndUnknownFields) {
  const std::string header =
      R"( {"s":{"dtype":"I64","shape":[],"data_offsets":[0,8],"new":[{"deep":[1.5,null]}]},"none":{"dtype":"F16","shape":[0,9],"data_offsets":[8,8]}}   )";
  const SafetensorsHeader got = read(safetensors(header, std::string(8, 'x')));
  ASSERT_EQ(got.tensors.size(), 2U);
  EXPECT_EQ(got.tensors[0].shape, Shape{});
  EXPECT_EQ(got.tensors[1].size_bytes, 0U);
  EXPECT_FALSE(got.metadata.has_value());
}

TEST(SafetensorsHeader, CountsF4InPairsAsPyTorchDoes) {
  const SafetensorsHeader got = read(safetensors(R"({"a":{"dtype":"F4","shape":[3,4],"data_offsets":[0,6]}})", std::string(6, 'x')));
  EXPECT_EQ(got.tensors.at(0).shape, (Shape{3, 2}));
}

TEST(SafetensorsHeader, RefusesEveryKindOfLie) {
  struct Bad {
    std::string content, says;
  };
  const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string deep = std::string(3000, '[') + std::string(3000, ']');
  const std::vector<Bad> cases{
      {"", "has 0 bytes"},
      {"1234567", "has 7 bytes"},
      {safetensors("").substr(0, 8), "not valid JSON"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "{}", "18446744073709551615 bytes"},
      {std::string("\0\0\0\0\0\0\0\x80", 8) + "{}", "9223372036854775808 bytes"},
      {std::string("\x03\0\0\0\0\0\0\0", 8) + "{}", "needs 11 bytes, the file has 10"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "git-lfs pointer"},
      {"PK\x03\x04 and more than eight bytes", "zip archive"},
      {safetensors("nonsense"), "not valid JSON"},
      {safetensors("{} {}"), "not valid JSON"},
      {safetensors(std::string("{}\0", 3)), "not valid JSON"},
      {safetensors("[1]"), "not a JSON object"},
      {safetensors("{\"a\xff\":1}"), "not valid JSON"},
      {safetensors(R"({"a":3})"), "tensor a: the header's entry is not a JSON object"},
      {safetensors(R"({"x":)" + deep + "}"), "not a JSON object"},
      {with_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"new":)" + deep + "}"), "nested more than 100"},
      {safetensors(R"({"a":)" + good + R"(,"a":)" + good + "}", std::string(8, 'x')), "tensor a is in the header twice"},
      {safetensors(R"({"__metadata__":{"n":1}})"), "__metadata__: n is not a string"},
      {safetensors(R"({"__metadata__":{"n":["x"]}})"), "__metadata__: n is not a string"},
      {with_entry(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "dtype is given twice"},
      {with_entry(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), "dtype is not a string"},
      {with_entry(R"({"shape":[2],"data_offsets":[0,8]})"), "has no dtype"},
      {with_entry(R"({"dtype":"F32","data_offsets":[0,8]})"), "has no shape"},
      {with_entry(R"({"dtype":"F32","shape":[2]})"), "has no data_offsets"},
      {with_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "has no data_offsets"},
      {with_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,9]})"), "more than two numbers"},
      {with_entry(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "shape is not a list"},
      {with_entry(R"({"dtype":"F32","shape":[[2]],"data_offsets":[0,8]})"), "not a whole number"},
      {with_entry(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "not a whole number"},
      {with_entry(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "not a whole number"},
      {with_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551616]})"), "not a whole number"},
      {with_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"), "not a whole number"},
      {with_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), "run backwards"},
      {with_entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), "needs 12 bytes, data_offsets give it 8"},
      {with_entry(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"), "larger than any file"},
      {with_entry(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})"), "fills no whole bytes"},
      {with_entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"), "cut short"},
      {with_entry(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "belongs to no tensor"},
      {with_entry(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "a hole"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                   std::string(8, 'x')),
       "tensor b overlaps tensor a by 4 bytes"},
  };
  for (const Bad& bad : cases) {
    const std::string got = failure(bad.content);
    EXPECT_TRUE(got.starts_with("bad_input: m.safetensors: ")) << bad.says << " / " << got;
    EXPECT_NE(got.find(bad.says), std::string::npos) << bad.says << " / " << got;
    EXPECT_EQ(got.find('\n'), std::string::npos) << got;
  }
}

TEST(SafetensorsHeader, NamesTensorAndTypeThatItDoesNotKnow) {
  const std::string got = failure(safetensors(R"({"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "xxx"));
  EXPECT_TRUE(got.starts_with("unsupported: m.safetensors: tensor w: element type F6_E2M3")) << got;
}

TEST(SafetensorsHeader, RefusesMoreDimensionsThanAreHandled) {
  EXPECT_TRUE(
      failure(safetensors(R"({"w":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", "x")).starts_with("unsupported: "));
}

TEST(SafetensorsHeader, DoesNotReadTheData) {
  MemoryFile file(safetensors(R"({"a":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})", std::string(100000, 'x')));
  (void)read_safetensors_header(file, "m");
  EXPECT_LT(file.largest_read(), 100U);
}

TEST(SafetensorsHeader, RefusesARealFileCutAtAnyByte) {
  std::ostringstream content;
  content << std::ifstream(UNSHARD_CASES "/fsdp/fsdp1_two_ranks/expected/model.safetensors", std::ios::binary).rdbuf();
  const std::string whole = content.str();
  ASSERT_GT(whole.size(), 1000U);
  EXPECT_EQ(failure(whole), "");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    ASSERT_TRUE(failure(whole.substr(0, length)).starts_with("bad_input: m.safetensors: ")) << length;
  }
}

TEST(SafetensorsHeader, SurvivesAnyFlippedByteOfARealHeader) {
  std::ostringstream content;
  content << std::ifstream(UNSHARD_CASES "/fsdp/fsdp1_two_ranks/expected/model.safetensors", std::ios::binary).rdbuf();
  const std::string whole = content.str();
  for (std::size_t at = 0; at < 2500 && at < whole.size(); ++at) {
    for (const char flip : {'\x01', '\x10', '\x80'}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      (void)failure(bad);
    }
  }
}

}  // namespace
}  // namespace unshard
