// Tensors and object trees in pickles written by hand: forms of other versions of torch, and lies.
#include <gtest/gtest.h>

#include "support/torch_values.h"

namespace unshard {
namespace {

using namespace unshard::testing;

TEST(TorchTensor, OldestAndNewestRebuildFunctionsAreRead) {
  const std::string oldest =
      make::call(make::global("torch._utils", "_rebuild_tensor"), {storage(), make::number(1), make::numbers({3}), make::numbers({1})});
  EXPECT_EQ(only(oldest).tensor.shape, Shape{3});
  const std::string third = make::call(make::global("torch._utils", "_rebuild_tensor_v3"),
                                       {make::storage("0", 16, "UntypedStorage"), make::number(3), make::numbers({2, 2}),
                                        make::numbers({2, 1}), make::no, make::ordered_dict(), make::global("torch", "uint16"), "}"});
  const StoredTensor tensor = only(third).tensor;
  EXPECT_EQ(tensor.dtype, DType::u16);
  EXPECT_EQ(tensor.position - tensor.record_position, 6U);
}

TEST(TorchTensor, TensorsOfDevicesWithoutStoragesAreTheCpusCopy) {
  const auto on_device = [](const std::string& dtype) {
    return make::call(make::global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"),
                      {four(), make::global("torch", dtype), make::text("xla:0"), make::no});
  };
  EXPECT_EQ(only(on_device("float32")).tensor.shape, Shape{4});
  EXPECT_NE(reason(on_device("bfloat16")).find("stored as float32 and to be read as torch.bfloat16"), std::string::npos);
}

TEST(TorchTensor, WrapperSubclassesOfOthersAreNamed) {
  EXPECT_NE(reason(make::subclass(make::global("torchao.quantization", "Float8Tensor"), {4}, make::dict({{"qdata", four()}})))
                .find("torchao.quantization.Float8Tensor"),
            std::string::npos);
}

TEST(TorchTensor, MoreThanEightDimensionsAreUnreadable) {
  const std::vector<std::int64_t> ones(9, 1);
  EXPECT_NE(reason(make::tensor(storage(), 0, ones, ones)).find("9 dimensions"), std::string::npos);
}

TEST(TorchTensor, AnEmptyTensorMayHaveAnyStrides) {
  EXPECT_EQ(only(make::tensor(storage(), 0, {0, 1000}, {1 << 30, 1 << 30})).tensor.shape, (Shape{0, 1000}));
}

TEST(TorchTensor, PathsAreKeysJoinedByDots) {
  const std::string tree =
      make::dict({{"model", make::dict({{"a.b", four()}})}, {"list", make::list({make::none, make::tuple({four()})})}});
  const TorchContents contents = parse(torch_archive(make::whole(tree), {{"data/0", four_floats}}));
  ASSERT_EQ(contents.entries.size(), 2U);
  EXPECT_EQ(contents.entries[0].path, "model.a.b");
  EXPECT_EQ(contents.entries[0].keys, (std::vector<std::string>{"model", "a.b"}));
  EXPECT_EQ(contents.entries[1].path, "list.1.0");
  EXPECT_EQ(contents.entries[1].keys, (std::vector<std::string>{"list", "1", "0"}));
}

TEST(TorchTensor, ABareTensorHasAnEmptyPath) {
  const TorchContents contents = parse(torch_archive(make::whole(four()), {{"data/0", four_floats}}));
  ASSERT_EQ(contents.entries.size(), 1U);
  EXPECT_EQ(contents.entries[0].path, "");
  EXPECT_TRUE(contents.entries[0].keys.empty());
}

TEST(TorchTensor, ANameTwiceIsGivenTwice) {
  const TorchContents contents = parse(torch_archive(make::whole(make::dict({{"w", four()}, {"w", part(2)}})), {{"data/0", four_floats}}));
  EXPECT_EQ(contents.entries.size(), 2U);
}

TEST(TorchTensor, ObjectsInsideObjectsAreNamedToo) {
  const std::string hidden =
      make::object(make::global("argparse", "Namespace"),
                   make::dict({{"x", make::list({make::call(make::global("posix", "system"), {make::text("true")})})}}));
  const TorchContents contents = parse(archive_with(hidden));
  ASSERT_EQ(contents.objects.size(), 2U);
  EXPECT_EQ(contents.objects[0].what, "argparse.Namespace");
  EXPECT_EQ(contents.objects[1].what, "posix.system call");
  EXPECT_EQ(contents.objects[1].key, "w");
}

TEST(TorchTensor, AnItemOfALargerFileIsRead) {
  const std::string item = torch_archive(make::whole(four()), {{"data/0", four_floats}});
  MemoryFile file(std::string(77, '-') + item + "behind");
  const TorchContents contents = read_torch_item(file, 77, item.size(), "__0_0.distcp");
  ASSERT_EQ(contents.entries.size(), 1U);
  EXPECT_EQ(stored_bytes(file, contents.entries[0].tensor), four_floats);
  EXPECT_THROW((void)read_torch_item(file, 78, item.size() + 100, "__0_0.distcp"), Error);
}

TEST(TorchTensor, DefectsAreNamed) {
  const std::pair<std::string, std::string> table[] = {
      {make::tensor(make::storage("0", 3), 0, {3}, {1}), "should have 3 elements of 4 bytes, its record has 16 bytes"},
      {make::tensor(make::storage("0", 5), 0, {4}, {1}), "should have 5 elements"},
      {make::tensor(make::storage("0", (1LL << 62) + 4), 0, {4}, {1}), "should have 4611686018427387908 elements"},
      {make::tensor(make::storage("0", -4), 0, {4}, {1}), "-4 is negative"},
      {make::tensor(make::storage("nowhere", 4), 0, {4}, {1}), "its storage 'nowhere' is not in the file"},
      {make::tensor(make::storage("../data/0", 4), 0, {4}, {1}), "is not in the file"},
      {make::tensor(storage(), 1, {4}, {1}), "goes beyond its storage of 4 elements"},
      {make::tensor(storage(), -1, {4}, {1}), "its offset: -1 is negative"},
      {make::tensor(storage(), 0, {4}, {2}), "goes beyond its storage"},
      {make::tensor(storage(), 3, {4}, {-1}), "its strides: -1 is negative"},
      {make::tensor(storage(), 0, {-4}, {1}), "its shape: -4 is negative"},
      {make::tensor(storage(), 0, {4}, {1LL << 62}), "goes beyond its storage"},
      {make::tensor(storage(), INT64_MAX, {2}, {INT64_MAX}), "goes beyond its storage"},
      {make::tensor(storage(), 0, {1LL << 32, 1LL << 32}, {0, 0}), "more than 2^63"},
      {make::tensor(storage(), 0, {4}, {1, 1}), "have different lengths"},
      {make::tensor(make::number(5), 0, {4}, {1}), "its storage is 5"},
      {make::tensor(make::text("id") + "Q", 0, {4}, {1}), "has no id of the form"},
      {make::tensor(make::tuple({make::text("module"), make::none, make::none, make::none, make::none}) + "Q", 0, {4}, {1}),
       "has no id of the form"},
      {make::tensor(
           make::tuple({make::text("storage"), make::global("os", "system"), make::text("0"), make::text("cpu"), make::number(4)}) + "Q", 0,
           {4}, {1}),
       "is no storage of torch"},
      {make::call(make::global("torch._utils", "_rebuild_tensor_v2"), {}), "has 0 arguments"},
      {make::call(make::global("torch._utils", "_rebuild_parameter"), {}), "has 0 arguments"},
  };
  for (const auto& [value, says] : table) {
    expect_refused(says, archive_with(value), says);
    expect_refused(says, archive_with(value), "tensor 'w': ");
  }
  std::string wrapped = four();
  for (int i = 0; i < 40; ++i)
    wrapped = make::call(make::global("torch._utils", "_rebuild_parameter"), {wrapped, make::no, make::ordered_dict()});
  expect_refused("wrapped", archive_with(wrapped), "wrapped more than 16 times");
}

TEST(TorchTensor, AnEndlessExpandOfAFewBytesIsALegalView) {
  EXPECT_EQ(only(make::tensor(storage(), 0, {1LL << 40}, {0})).tensor.shape, Shape{std::uint64_t{1} << 40});
}

TEST(TorchTensor, ValuesThatRepeatInsideEachOtherEnd) {
  std::string bomb = "]q\x01";  // each list holds the one before twenty times: 20^40 paths
  for (int level = 2; level < 42; ++level) {
    bomb += "](";
    for (int i = 0; i < 20; ++i) bomb += std::string("h") + static_cast<char>(level - 1);
    bomb += std::string("eq") + static_cast<char>(level);
  }
  bomb.insert(2 + 1,
              "K\x01"
              "a");
  expect_refused("bomb", torch_archive("\x80\x02(" + bomb + "t."), "repeat inside each other too often");
}

TEST(TorchTensor, LongKeysThatRepeatEnd) {
  const std::string key = make::text(std::string(1 << 20, 'k'));
  std::string items;
  for (int i = 0; i < 5000; ++i) items += make::number(i) + "h\x07";
  const std::string tree = four() + "q\x07" + "0}" + key + "}(" + items + "us";
  expect_refused("long keys", torch_archive(make::whole(tree), {{"data/0", four_floats}}), "its keys are longer together");
}

TEST(TorchFileDefects, AreNamed) {
  const auto compressed = [](ZipFields& fields) { fields.method = 8; };
  expect_refused("no pickle", zip_archive({{"data/0", "x"}}), "it has no record 'data.pkl'");
  expect_refused("compressed", torch_archive(make::whole("}"), {}, {.edit_local = compressed, .edit_central = compressed}),
                 "is compressed (zip method 8)", ErrorCode::unsupported);
  expect_refused("TorchScript", torch_archive(make::whole("}"), {{"constants.pkl", "x"}}), "is a TorchScript archive",
                 ErrorCode::unsupported);
  expect_refused("byteorder", zip_archive({{"data.pkl", make::whole("}")}, {"byteorder", "middle"}}), "record 'byteorder' says 'middle'");
  expect_refused("long byteorder", zip_archive({{"data.pkl", make::whole("}")}, {"byteorder", std::string(17, 'l')}}),
                 "record 'byteorder' has 17 bytes");
  expect_refused("CRC", torch_archive(make::whole("}"), {}, {.edit_central = [](ZipFields& f) { f.crc = 1; }}),
                 "record 'data.pkl' is damaged: its CRC-32 does not match");
  expect_refused("empty", "", "is empty (0 bytes)");
  expect_refused("git-lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a git-lfs pointer");
  expect_refused("HTML", "<!DOCTYPE html><html>403</html>", "is an HTML page");
  expect_refused("text", "hello\n", "begin with 68 65 6c 6c 6f 0a");
  expect_refused("safetensors", little(2, 8) + "{}", "is a safetensors file");
  expect_refused("tar", std::string(257, '\0') + "ustar" + std::string(250, '\0'), "is a tar archive", ErrorCode::unsupported);
  expect_refused("gzip", "\x1F\x8B rest", "is compressed with gzip");
}

}  // namespace
}  // namespace unshard
