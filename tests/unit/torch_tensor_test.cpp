// Kinds of tensors: files that torch wrote (tests/data/torch), and pickles written by hand after the forms that other versions of torch
// write.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "formats/torch_file.h"
#include "support/memory_file.h"
#include "support/stored_values.h"
#include "support/torch_archive.h"
#include "unshard/error.h"

namespace unshard {
namespace {

using namespace unshard::testing;
namespace make = unshard::testing::pickled;

const std::string data_folder = UNSHARD_CASES "/../data/torch/";

/// Numbers as little-endian bytes.
template <class Number>
std::string raw(std::initializer_list<Number> numbers) {
  std::string bytes;
  for (const Number number : numbers) bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  return bytes;
}
const std::string four_floats = raw({1.F, 2.F, 3.F, 4.F});

/// A file with one value named "w" over the storage "0" of four floats.
std::string archive_with(const std::string& value) {
  return torch_archive(make::whole(make::dict({{"w", value}})), {{"data/0", four_floats}, {"data/ranks", raw({0, 1, 2, 3})}});
}
std::string storage() {
  return make::storage("0", 4);
}
std::string four() {
  return make::tensor(storage(), 0, {4}, {1});
}
std::string part(std::int64_t count) {
  return make::tensor(storage(), 0, {count}, {1});
}

TorchContents parse(const std::string& content, std::optional<std::uint32_t> rank = std::nullopt) {
  MemoryFile file(content);
  return read_torch_file(file, "file.pt", rank);
}
TorchEntry only(const std::string& value, std::optional<std::uint32_t> rank = std::nullopt) {
  TorchContents contents = parse(archive_with(value), rank);
  if (contents.entries.size() != 1)
    throw std::runtime_error("expected one tensor: " + (contents.unreadable.empty() ? "" : contents.unreadable[0].second));
  return contents.entries[0];
}
std::string reason(const std::string& value) {
  const TorchContents contents = parse(archive_with(value));
  return contents.unreadable.size() == 1 && contents.entries.empty() ? contents.unreadable[0].second : "it is readable";
}

void expect_refused(const std::string& name, const std::string& content, const std::string& says, ErrorCode code = ErrorCode::bad_input) {
  try {
    (void)parse(content);
    ADD_FAILURE() << name << ": accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << name << ": " << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("file.pt: ")) << name << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << name << ": " << error.what();
  }
}

// ---------------------------------------------------------------- files that torch wrote

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

// ---------------------------------------------------------------- rebuild functions

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

// ---------------------------------------------------------------- DTensors of all eras

const std::string new_package = "torch.distributed.tensor";

std::string placement(const std::string& name, const std::vector<std::pair<std::string, std::string>>& state,
                      const std::string& module = new_package + ".placement_types") {
  return make::object(make::global(module, name), make::dict(state));
}
std::string shard(std::int64_t dim) {
  return placement("Shard", {{"dim", make::number(dim)}});
}

std::string dtensor(const std::string& mesh, const std::vector<std::string>& placements, const std::string& local,
                    const std::vector<std::int64_t>& shape = {8}, const std::vector<std::pair<std::string, std::string>>& more = {}) {
  std::vector<std::pair<std::string, std::string>> spec{{"mesh", mesh}, {"placements", make::tuple(placements)}};
  spec.insert(spec.end(), more.begin(), more.end());
  const std::string slots = make::dict(
      {{"_local_tensor", local}, {"_spec", make::object(make::global(new_package + "._dtensor_spec", "DTensorSpec"), make::dict(spec))}});
  return make::subclass(make::global(new_package, "DTensor"), shape, make::tuple({make::none, slots}));
}

std::string mesh_of(const std::vector<std::pair<std::string, std::string>>& attributes) {
  return make::object(make::global("torch.distributed.device_mesh", "DeviceMesh"), make::dict(attributes));
}
std::string axis(const std::vector<std::int64_t>& size, const std::vector<std::int64_t>& stride) {
  return make::object(make::global("torch.distributed._mesh_layout", "_FlatLayout"),
                      make::dict({{"shape", make::numbers(size)}, {"stride", make::numbers(stride)}}));
}
std::string layout_of_axes(const std::vector<std::string>& axes) {
  return make::object(make::global("torch.distributed._mesh_layout", "_MeshLayout"), make::dict({{"axes", make::tuple(axes)}}));
}
std::string ranks_tensor(std::int64_t offset, const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
  return make::tensor(make::storage("ranks", 4, "IntStorage"), offset, shape, strides);
}

using Numbers = std::vector<std::uint64_t>;

TEST(DTensor, MeshOfTorch26IsATensorOfRanks) {
  const std::string mesh =
      mesh_of({{"mesh", ranks_tensor(0, {2, 2}, {2, 1})}, {"_coordinate_on_dim", make::list({make::number(1), make::number(0)})}});
  const StoredDTensor tensor = *only(dtensor(mesh, {shard(0), placement("Replicate", {})}, four())).dtensor;
  EXPECT_EQ(tensor.mesh_sizes, (Numbers{2, 2}));
  EXPECT_EQ(tensor.coordinate, (Numbers{1, 0}));
  EXPECT_EQ(tensor.global_shape, Shape{8});
  EXPECT_EQ(tensor.local.shape, Shape{4});
}

TEST(DTensor, WithoutACoordinateTheRankIsLookedUpInTheMesh) {
  const std::string sliced = mesh_of({{"mesh", ranks_tensor(1, {2}, {2})}});  // ranks 1 and 3
  EXPECT_EQ(only(dtensor(sliced, {shard(0)}, four()), 3).dtensor->coordinate, Numbers{1});
  EXPECT_TRUE(only(dtensor(sliced, {shard(0)}, four()), 2).dtensor->outside_mesh);
  const std::string listed = mesh_of({{"mesh", ranks_tensor(0, {2, 2}, {2, 1})}, {"_flatten_mesh_list", make::numbers({3, 2, 1, 0})}});
  EXPECT_EQ(only(dtensor(listed, {shard(0), shard(0)}, four()), 1).dtensor->coordinate, (Numbers{1, 0}));
  EXPECT_NE(reason(dtensor(listed, {shard(0), shard(0)}, four())).find("not stated"), std::string::npos);
}

TEST(DTensor, AMeshThatDoesNotHoldTheRankHasNoCoordinate) {
  const std::string mesh = mesh_of({{"mesh", ranks_tensor(0, {4}, {1})}, {"_coordinate_on_dim", make::none}});
  const StoredDTensor tensor = *only(dtensor(mesh, {shard(0)}, part(0))).dtensor;
  EXPECT_TRUE(tensor.outside_mesh);
  EXPECT_TRUE(tensor.coordinate.empty());
}

TEST(DTensor, LayoutsOf2025AndLaterGiveSizesAndCoordinates) {
  const std::string axes = layout_of_axes({axis({2}, {4}), axis({}, {}), axis({4}, {1})});
  const std::string stated = mesh_of({{"_layout", axes}, {"_coordinate_on_dim", make::numbers({1, 0, 2})}});
  const StoredDTensor tensor = *only(dtensor(stated, {shard(0), shard(0), shard(0)}, four())).dtensor;
  EXPECT_EQ(tensor.mesh_sizes, (Numbers{2, 1, 4}));
  EXPECT_EQ(tensor.coordinate, (Numbers{1, 0, 2}));
  const std::string looked_up =
      mesh_of({{"_layout", axes}, {"_flatten_rank_map", make::numbers({0, 1, 2, 3, 4, 5, 6, 7})}, {"_rank", make::number(6)}});
  EXPECT_EQ(only(dtensor(looked_up, {shard(0), shard(0), shard(0)}, four())).dtensor->coordinate, (Numbers{1, 0, 2}));
  const std::string older = make::object(make::global("torch.distributed._mesh_layout", "_MeshLayout"),
                                         make::dict({{"shape", make::numbers({2, 2})}, {"stride", make::numbers({2, 1})}}));
  const std::string flat = mesh_of({{"_layout", older}, {"_rank_map", ranks_tensor(0, {4}, {1})}});
  EXPECT_EQ(only(dtensor(flat, {shard(0), shard(0)}, four()), 2).dtensor->coordinate, (Numbers{1, 0}));
}

TEST(DTensor, ClassesAreKnownInTheirOldModules) {
  const std::string old = "torch.distributed._tensor";
  const std::string mesh =
      make::object(make::global(old + ".device_mesh", "DeviceMesh"),
                   make::dict({{"mesh", ranks_tensor(0, {4}, {1})}, {"_coordinate_on_dim", make::list({make::number(3)})}}));
  const std::string spec = make::object(
      make::global(old + ".placement_types", "DTensorSpec"),
      make::dict({{"mesh", mesh},
                  {"placements", make::tuple({placement("_Partial", {{"reduce_op", make::text("sum")}}, old + ".placement_types")})}}));
  const std::string value = make::subclass(make::global(old + ".api", "DTensor"), {4},
                                           make::tuple({"}", make::dict({{"_local_tensor", four()}, {"_spec", spec}})}));
  const StoredDTensor tensor = *only(value).dtensor;
  EXPECT_EQ(tensor.coordinate, Numbers{3});
  EXPECT_EQ(tensor.placements[0].kind, Placement::Kind::partial);
}

std::string simple_mesh(std::int64_t size = 2, std::int64_t at = 0) {
  return mesh_of({{"_layout", layout_of_axes({axis({size}, {1})})}, {"_coordinate_on_dim", make::numbers({at})}});
}
std::string square_mesh() {
  return mesh_of({{"_layout", layout_of_axes({axis({2}, {2}), axis({2}, {1})})}, {"_coordinate_on_dim", make::numbers({0, 0})}});
}
std::string order_entry(std::int64_t dim, const std::vector<std::int64_t>& mesh_dims) {
  return make::global(new_package + "._dtensor_spec", "ShardOrderEntry") + make::tuple({make::number(dim), make::numbers(mesh_dims)}) +
         "\x81";
}

TEST(DTensor, NegativeDimensionsCountFromTheEnd) {
  EXPECT_EQ(only(dtensor(simple_mesh(), {shard(-1)}, four(), {3, 8})).dtensor->placements[0].dim, 1U);
}

TEST(DTensor, OnlyAnUnusualShardOrderIsKept) {
  const auto with_order = [](const std::vector<std::int64_t>& mesh_dims) {
    return *only(dtensor(square_mesh(), {shard(0), shard(0)}, four(), {16}, {{"shard_order", make::tuple({order_entry(0, mesh_dims)})}}))
                .dtensor;
  };
  EXPECT_TRUE(with_order({0, 1}).shard_order.empty());
  EXPECT_EQ(with_order({1, 0}).shard_order, (Numbers{1, 0}));
}

TEST(DTensor, DefectsAreNamed) {
  const std::pair<std::string, std::string> table[] = {
      {dtensor(simple_mesh(2, 2), {shard(0)}, four()), "its place in the mesh lies outside of it"},
      {dtensor(simple_mesh(0), {shard(0)}, four()), "a dimension of size 0"},
      {dtensor(simple_mesh(-2), {shard(0)}, four()), "a mesh's size: -2 is negative"},
      {dtensor(simple_mesh(), {shard(0), shard(0)}, four()), "2 placements on a mesh of 1 dimensions"},
      {dtensor(simple_mesh(), {shard(1)}, four()), "sharded along dimension 1 of 1"},
      {dtensor(simple_mesh(), {shard(-2)}, four()), "sharded along dimension -2 of 1"},
      {dtensor(simple_mesh(), {placement("_StridedShard", {{"dim", make::number(0)}, {"split_factor", make::number(0)}})}, four()),
       "a split factor is 0"},
      {dtensor(simple_mesh(), {placement("Shard", {})}, four()), "placement's dimension is missing"},
      {dtensor(mesh_of({{"mesh", make::tensor(storage(), 0, {4}, {1})}}), {shard(0)}, four()), "ranks are of type float32"},
      {dtensor(mesh_of({}), {shard(0)}, four()), "mesh's list of ranks is missing"},
      {dtensor(square_mesh(), {shard(0), shard(0)}, four(), {16}, {{"shard_order", make::tuple({order_entry(0, {0, 0})})}}),
       "names mesh dimension 0 wrongly"},
      {dtensor(square_mesh(), {shard(0), shard(0)}, four(), {16}, {{"shard_order", make::tuple({order_entry(0, {7})})}}),
       "names mesh dimension 7 wrongly"},
      {make::subclass(make::global(new_package, "DTensor"), {8}, make::tuple({make::none, make::dict({{"_local_tensor", four()}})})),
       "its DTensorSpec is missing"},
      {dtensor(simple_mesh(), {shard(0)}, four(), {-8}), "its shape: -8 is negative"},
  };
  for (const auto& [value, says] : table) expect_refused(says, archive_with(value), "tensor 'w': ");
  for (const auto& [value, says] : table) expect_refused(says, archive_with(value), says);
  EXPECT_NE(reason(dtensor(simple_mesh(), {placement("Ragged", {})}, four())).find("Ragged"), std::string::npos);
  EXPECT_NE(reason(dtensor(make::object(make::global("evil", "DeviceMesh"), "}"), {shard(0)}, four())).find("evil.DeviceMesh"),
            std::string::npos);
}

TEST(DTensor, AMeshThatContainsItselfIsRead) {
  const std::string knot =
      make::global("torch.distributed.device_mesh", "DeviceMesh") + std::string(")\x81q\x09") +
      make::dict({{"_layout", layout_of_axes({axis({2}, {1})})}, {"_coordinate_on_dim", make::numbers({1})}, {"_root_mesh", "h\x09"}}) +
      "b";
  EXPECT_EQ(only(dtensor(knot, {shard(0)}, four())).dtensor->coordinate, Numbers{1});
}

// ---------------------------------------------------------------- ShardedTensor

std::string metadata(const std::vector<std::int64_t>& offset, const std::vector<std::int64_t>& size) {
  const auto as_list = [](const std::vector<std::int64_t>& values) {
    std::vector<std::string> items;
    for (const std::int64_t value : values) items.push_back(make::number(value));
    return make::list(items);
  };
  return make::object(make::global("torch.distributed._shard.metadata", "ShardMetadata"),
                      make::tuple({make::none, make::dict({{"shard_offsets", as_list(offset)}, {"shard_sizes", as_list(size)}})}));
}
std::string local_shard(const std::string& tensor, const std::string& where) {
  return make::object(make::global("torch.distributed._shard.sharded_tensor.shard", "Shard"),
                      make::tuple({make::none, make::dict({{"tensor", tensor}, {"metadata", where}})}));
}
std::string sharded(const std::vector<std::string>& shards, const std::vector<std::int64_t>& shape = {8}) {
  const std::string cls = make::global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor");
  const std::string state_class = make::call(make::global("__builtin__", "getattr"), {cls, make::text("ProcessGroupState")});
  return make::subclass(
      cls, shape,
      make::tuple({make::list(shards), make::none, make::object(state_class, make::dict({{"global_world_size", make::number(4)}})),
                   make::none, make::no}));
}

TEST(ShardedTensor, ShardsKeepTheirOwnPlaces) {
  const StoredShardedTensor tensor = *only(sharded({local_shard(four(), metadata({4}, {4}))})).sharded;
  EXPECT_EQ(tensor.global_shape, Shape{8});
  EXPECT_EQ(tensor.dtype, DType::f32);
  EXPECT_EQ(tensor.world_size, 4U);
  ASSERT_EQ(tensor.shards.size(), 1U);
  EXPECT_EQ(tensor.shards[0].offset, Shape{4});
  EXPECT_EQ(tensor.shards[0].extent, Shape{4});
  EXPECT_TRUE(only(sharded({})).sharded->shards.empty());
}

TEST(ShardedTensor, DefectsAreNamed) {
  expect_refused("outside", archive_with(sharded({local_shard(four(), metadata({5}, {4}))})),
                 "a shard at [5] of shape [4] leaves the tensor's shape [8]");
  expect_refused("overflow", archive_with(sharded({local_shard(part(1), metadata({INT64_MAX}, {1}))})), "leaves the tensor's shape");
  expect_refused("negative", archive_with(sharded({local_shard(four(), metadata({-1}, {4}))})), "a shard's offset: -1 is negative");
  expect_refused("sizes", archive_with(sharded({local_shard(four(), metadata({0}, {3}))})),
                 "holds a tensor of shape [4], its metadata says [3]");
  expect_refused("rank", archive_with(sharded({local_shard(four(), metadata({0, 0}, {4, 1}))})), "its metadata says");
  expect_refused("no tensor", archive_with(sharded({make::object(make::global("a", "b"), "}")})), "is missing");
}

// ---------------------------------------------------------------- lies about storages and views

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

// ---------------------------------------------------------------- the legacy stream

std::string legacy_stream(const std::string& object, const std::string& keys, const std::string& storages) {
  return std::string("\x80\x02\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19\x2E", 15) + make::whole(make::number(1001)) +
         make::whole("}") + make::whole(object) + make::whole(keys) + storages;
}
std::string legacy_storage(const std::string& key, std::int64_t elements, const std::string& view) {
  return make::tuple({make::text("storage"), make::global("torch", "FloatStorage"), make::text(key), make::text("cpu"),
                      make::number(elements), view}) +
         "Q";
}

TEST(LegacyStream, ViewsOfStoragesAreSubRanges) {
  const std::string view = make::tuple({make::text("v"), make::number(1), make::number(2)});
  MemoryFile file(legacy_stream(make::dict({{"w", make::tensor(legacy_storage("k", 4, view), 0, {2}, {1})}}), make::list({make::text("k")}),
                                little(4, 8) + four_floats));
  const TorchContents contents = read_torch_file(file, "file.pt");
  ASSERT_EQ(contents.entries.size(), 1U);
  EXPECT_EQ(stored_bytes(file, contents.entries[0].tensor), raw({2.F, 3.F}));
}

TEST(LegacyStream, DefectsAreNamed) {
  const auto tensor = [](const std::string& view = make::none, std::int64_t count = 4) {
    return make::dict({{"w", make::tensor(legacy_storage("k", 4, view), 0, {count}, {1})}});
  };
  const std::string key = make::list({make::text("k")});
  expect_refused("count too large", legacy_stream(tensor(), key, little(5, 8) + four_floats), "is truncated: storage 'k' of 5 elements");
  expect_refused("count that wraps", legacy_stream(tensor(), key, little((1ULL << 62) + 4, 8) + four_floats), "is truncated: storage 'k'");
  expect_refused("other count", legacy_stream(tensor(), key, little(3, 8) + four_floats), "should have 4 elements");
  expect_refused("no storage", legacy_stream(tensor(), key, ""), "is truncated: storage 'k' should begin");
  expect_refused("unknown key", legacy_stream(tensor(), make::list({make::text("other")}), little(4, 8) + four_floats),
                 "belongs to no tensor");
  expect_refused(
      "key twice",
      legacy_stream(tensor(), make::list({make::text("k"), make::text("k")}), little(4, 8) + four_floats + little(4, 8) + four_floats),
      "is listed twice");
  expect_refused("key not listed", legacy_stream(tensor(), "]", ""), "is not in the file");
  expect_refused(
      "view beyond",
      legacy_stream(tensor(make::tuple({make::text("v"), make::number(3), make::number(2)}), 2), key, little(4, 8) + four_floats),
      "goes beyond its 4 elements");
  expect_refused("cut pickle", legacy_stream(tensor(), key, "").substr(0, 60), "is truncated");
}

}  // namespace
}  // namespace unshard
