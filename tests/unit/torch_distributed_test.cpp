// DTensors of all eras and ShardedTensors, in pickles written by hand after the attributes that each version of torch stores.
#include <gtest/gtest.h>

#include "support/torch_values.h"

namespace unshard {
namespace {

using namespace unshard::testing;

// DTensor

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

TEST(DTensor, ALocalTensorOfAnotherSubclassIsNamed) {
  const std::string inner = make::subclass(make::global("torchao.float8", "Float8Tensor"), {4}, make::dict({{"qdata", four()}}));
  EXPECT_NE(reason(dtensor(simple_mesh(), {shard(0)}, inner)).find("torchao.float8.Float8Tensor"), std::string::npos);
}

TEST(DTensor, AMeshThatContainsItselfIsRead) {
  const std::string knot =
      make::global("torch.distributed.device_mesh", "DeviceMesh") + std::string(")\x81q\x09") +
      make::dict({{"_layout", layout_of_axes({axis({2}, {1})})}, {"_coordinate_on_dim", make::numbers({1})}, {"_root_mesh", "h\x09"}}) +
      "b";
  EXPECT_EQ(only(dtensor(knot, {shard(0)}, four())).dtensor->coordinate, Numbers{1});
}

// ShardedTensor

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

}  // namespace
}  // namespace unshard
