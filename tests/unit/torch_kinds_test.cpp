// Kinds of tensors in files that torch wrote (tests/data/torch/generate.py), with values known by heart.
#include <gtest/gtest.h>

#include <map>

#include "support/torch_values.h"

namespace unshard {
namespace {

using namespace unshard::testing;

const std::string data_folder = UNSHARD_CASES "/../data/torch/";

class KindsOfTorch : public ::testing::Test {
 protected:
  void read(const std::string& name) {
    file_ = system_->open_for_reading(data_folder + name);
    contents_ = read_torch_file(*file_, name);
  }
  std::string bytes(const std::string& path) { return stored_bytes(*file_, at(path)); }
  const StoredTensor& at(const std::string& path) const {
    for (const TorchEntry& entry : contents_.entries) {
      if (entry.path == path) return entry.tensor;
    }
    throw std::runtime_error("no tensor " + path);
  }
  std::unique_ptr<FileSystem> system_ = posix_file_system();
  std::unique_ptr<File> file_;
  TorchContents contents_;
};

TEST_F(KindsOfTorch, WrappedTensorsAreTheirData) {
  read("kinds.pt");
  const std::string count = raw({0.F, 1.F, 2.F, 3.F, 4.F, 5.F});
  for (const std::string name : {"plain", "parameter", "attributed", "with_attribute", "tagged"}) EXPECT_EQ(bytes(name), count) << name;
  EXPECT_EQ(bytes("transposed"), raw({0.F, 3.F, 1.F, 4.F, 2.F, 5.F}));
  EXPECT_EQ(bytes("zero_dim"), raw({2.5F}));
  EXPECT_EQ(at("empty").shape, (Shape{0, 3}));
  EXPECT_EQ(bytes("nested.inner.3"), raw({2.F, 3.F}));
}

TEST_F(KindsOfTorch, AllElementTypesAreKnown) {
  read("kinds.pt");
  const DType integers[] = {DType::u8, DType::i8, DType::i16, DType::i32, DType::i64, DType::u16, DType::u32, DType::u64};
  for (std::size_t i = 0; i < 8; ++i) {
    const std::string path = "numbers." + std::to_string(i);
    EXPECT_EQ(at(path).dtype, integers[i]);
    const std::uint64_t size = info(integers[i]).size_bytes;
    EXPECT_EQ(bytes(path), little(1, static_cast<int>(size)) + little(2, static_cast<int>(size)));
  }
  // 1 and 2 in each format: sign, exponent and mantissa written out by hand.
  const std::pair<DType, std::string> floats[] = {{DType::f64, raw({1.0, 2.0})},
                                                  {DType::f16, std::string("\0\x3C\0\x40", 4)},
                                                  {DType::bf16, std::string("\x80\x3F\0\x40", 4)},
                                                  {DType::f8_e4m3, "\x38\x40"},
                                                  {DType::f8_e5m2, "\x3C\x40"},
                                                  {DType::f8_e4m3fnuz, "\x40\x48"},
                                                  {DType::f8_e5m2fnuz, "\x40\x44"}};
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(at("floats." + std::to_string(i)).dtype, floats[i].first);
    EXPECT_EQ(bytes("floats." + std::to_string(i)), floats[i].second);
  }
  EXPECT_EQ(at("booleans").dtype, DType::boolean);
  EXPECT_EQ(bytes("complexes.0"), raw({1.F, 2.F}));
  EXPECT_EQ(bytes("complexes.1"), raw({1.0, 2.0}));
}

TEST_F(KindsOfTorch, TensorsThatCantBeHadSayWhy) {
  read("kinds.pt");
  const std::map<std::string, std::string> reasons(contents_.unreadable.begin(), contents_.unreadable.end());
  ASSERT_EQ(reasons.size(), 6U);
  EXPECT_NE(reasons.at("unreadable.meta").find("meta tensor"), std::string::npos);
  EXPECT_NE(reasons.at("unreadable.conj").find("conj"), std::string::npos);
  EXPECT_NE(reasons.at("unreadable.sparse").find("sparse"), std::string::npos);
  EXPECT_NE(reasons.at("unreadable.csr").find("sparse"), std::string::npos);
  EXPECT_NE(reasons.at("unreadable.quantised").find("quantised"), std::string::npos);
  EXPECT_NE(reasons.at("unreadable.nested").find("nested"), std::string::npos);
}

TEST_F(KindsOfTorch, AnUnknownSubclassWithItsOwnDataIsReadAndNamed) {
  read("kinds.pt");
  ASSERT_EQ(contents_.objects.size(), 1U);
  EXPECT_EQ(contents_.objects[0].key, "tagged");
  EXPECT_EQ(contents_.objects[0].what, "__main__.Tagged tensor");
}

TEST_F(KindsOfTorch, TheStreamBeforeZipHasViewsOfStorages) {
  read("kinds_legacy.pt");
  EXPECT_EQ(bytes("part"), raw<std::int64_t>({3, 4}));
  EXPECT_EQ(bytes("other"), raw({1.5F, -2.5F}));
  EXPECT_EQ(bytes("empty"), "");
  EXPECT_EQ(at("part").record_position, at("whole").record_position);
  EXPECT_FALSE(at("whole").has_crc);
}

TEST_F(KindsOfTorch, PlainPicklesCarryTheirStorages) {
  read("plain_protocol5.pkl");
  EXPECT_EQ(bytes("a"), raw<std::int64_t>({0, 1, 2}));
  EXPECT_EQ(bytes("b"), raw({0.5F}));
  read("plain_protocol2.pkl");  // as texts, in which bytes above 127 take two
  ASSERT_EQ(contents_.unreadable.size(), 2U);
}

}  // namespace
}  // namespace unshard
