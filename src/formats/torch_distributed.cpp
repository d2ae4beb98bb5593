// DTensor and ShardedTensor: what their pickled states say, from torch 1.13 to 2.13. Where the attributes come from:
//   DTensor          torch/distributed/tensor/_api.py: state (None or dict, slots {_local_tensor, _spec})
//   DTensorSpec      torch/distributed/tensor/_dtensor_spec.py: mesh, placements, tensor_meta, shard_order
//   DeviceMesh       torch/distributed/device_mesh.py: up to 2.9 `mesh` (an int tensor), then `_layout` over `_rank_map`;
//   `_coordinate_on_dim` in all of them ShardedTensor    torch/distributed/_shard/sharded_tensor/api.py (__getstate__): (local shards,
//   metadata, process group, sharding spec, init_rrefs)
#include <algorithm>
#include <cstring>

#include "checked_math.h"
#include "formats/pickle_state.h"
#include "formats/torch_rebuild.h"
#include "unshard/error.h"

namespace unshard {

using pickle::attribute;
using pickle::in_state;
using pickle::Kind;
using pickle::Node;

namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::bad_input, what);
}

const Node& require(const Node* node, const char* what) {
  if (node == nullptr) refuse(std::string("its ") + what + " is missing");
  return *node;
}

std::vector<std::uint64_t> naturals(const Node& list, const char* what) {
  if (list.kind != Kind::tuple && list.kind != Kind::list)
    refuse(std::string(what) + " is " + pickle::describe(list) + ", expected a tuple");
  std::vector<std::uint64_t> numbers;
  numbers.reserve(list.elements().size());
  for (const Node* item : list.elements()) numbers.push_back(natural(*item, what));
  return numbers;
}

/// A dimension of a tensor of `rank` dimensions, counted from the end when negative.
std::uint64_t dimension(const Node& node, std::size_t rank) {
  if (node.kind != Kind::integer) refuse("a placement's dimension is " + pickle::describe(node) + ", expected a number");
  const auto count = static_cast<std::int64_t>(rank);
  const std::int64_t dim = node.integer < 0 ? node.integer + count : node.integer;
  if (node.integer < -count || dim >= count)
    refuse("it is sharded along dimension " + std::to_string(node.integer) + " of " + std::to_string(rank));
  return static_cast<std::uint64_t>(dim);
}

Placement placement_of(const Node& node, std::size_t rank) {
  const TorchName name = made_by(node);
  Placement placement;
  if (name == TorchName::replicate) return placement;
  if (name == TorchName::partial) {
    placement.kind = Placement::Kind::partial;
    return placement;
  }
  if (name != TorchName::shard && name != TorchName::strided_shard)
    throw Unreadable("one of its placements is " + pickle::describe(node) + ", which is not known");
  placement.dim = dimension(require(attribute(node, "dim"), "placement's dimension"), rank);
  placement.kind = name == TorchName::shard ? Placement::Kind::shard : Placement::Kind::strided_shard;
  if (placement.kind == Placement::Kind::strided_shard) {
    placement.split_factor = natural(require(attribute(node, "split_factor"), "placement's split factor"), "a split factor");
    if (placement.split_factor == 0) refuse("a split factor is 0");
  }
  return placement;
}

/// One ShardOrderEntry(tensor_dim, mesh_dims): its mesh_dims.
std::span<const Node* const> ordered_dims(const Node& entry) {
  const auto fields = entry.kind == Kind::tuple ? entry.elements() : entry.args();
  if (fields.size() != 2) refuse("its shard order holds " + pickle::describe(entry) + ", expected pairs");
  return fields[1]->elements();
}

/// Mesh dimensions in the order in which they cut; empty for the usual order, left to right.
std::vector<std::uint64_t> shard_order_of(const Node* order, std::size_t mesh_dims) {
  if (order == nullptr || order->kind == Kind::none) return {};
  std::vector<std::uint64_t> dims;
  bool usual = true;
  for (const Node* entry : order->elements()) {
    for (const Node* node : ordered_dims(*entry)) {
      const std::uint64_t dim = natural(*node, "its shard order");
      if (dim >= mesh_dims || std::find(dims.begin(), dims.end(), dim) != dims.end())
        refuse("its shard order names mesh dimension " + std::to_string(dim) + " wrongly");
      usual = usual && (node == ordered_dims(*entry).front() || dim > dims.back());
      dims.push_back(dim);
    }
  }
  if (usual) dims.clear();
  return dims;
}

/// Sizes and strides of a mesh layout: an axis is a number, or a tuple of none (size 1) or one.
struct Layout {
  std::vector<std::uint64_t> sizes, strides;
};

std::uint64_t product(const Node& node, const char* what) {
  if (node.kind == Kind::integer) return natural(node, what);
  std::uint64_t value = 1;
  for (const std::uint64_t factor : naturals(node, what)) {
    const auto next = checked_multiply(value, factor);
    if (!next) refuse(std::string(what) + " is too large");
    value = *next;
  }
  return value;
}

void add_axis(Layout& layout, const Node& size, const Node& stride) {
  layout.sizes.push_back(product(size, "a mesh's size"));
  const bool single = stride.kind == Kind::integer || stride.elements().size() == 1;
  layout.strides.push_back(single ? product(stride, "a mesh's stride") : 0);
}

Layout layout_of(const Node& node) {
  Layout layout;
  if (const Node* axes = attribute(node, "axes")) {
    for (const Node* axis : axes->elements())
      add_axis(layout, require(attribute(*axis, "shape"), "mesh's shape"), require(attribute(*axis, "stride"), "mesh's stride"));
    return layout;
  }
  const Node& shape = require(attribute(node, "shape"), "mesh's shape");
  const Node& stride = require(attribute(node, "stride"), "mesh's stride");
  if (shape.kind == Kind::integer) {
    add_axis(layout, shape, stride);
    return layout;
  }
  if (shape.elements().size() != stride.elements().size()) refuse("its mesh has another number of sizes than of strides");
  for (std::size_t i = 0; i < shape.elements().size(); ++i) add_axis(layout, *shape.elements()[i], *stride.elements()[i]);
  return layout;
}

}  // namespace

void TorchRebuilder::dtensor(const Rebuild& call, TorchEntry& entry) {
  entry.kind = TorchEntry::Kind::dtensor;
  StoredDTensor& made = entry.dtensor.emplace();
  made.global_shape = shape_of(*call.args[2], "its shape");
  const Node& spec = require(in_state(call.state, "_spec"), "DTensorSpec");
  if (made_by(spec) != TorchName::dtensor_spec)
    throw Unreadable("its placement is stated by " + pickle::describe(spec) + ", which is not known");
  const Mesh& its_mesh = mesh(require(attribute(spec, "mesh"), "device mesh"));
  made.mesh_sizes = its_mesh.sizes;
  made.coordinate = its_mesh.coordinate;
  made.outside_mesh = its_mesh.outside;
  const Node& placements = require(attribute(spec, "placements"), "list of placements");
  if (placements.elements().size() != its_mesh.sizes.size()) {
    refuse("it has " + std::to_string(placements.elements().size()) + " placements on a mesh of " + std::to_string(its_mesh.sizes.size()) +
           " dimensions");
  }
  made.placements.reserve(placements.elements().size());
  for (const Node* placement : placements.elements()) made.placements.push_back(placement_of(*placement, made.global_shape.size()));
  made.shard_order = shard_order_of(attribute(spec, "shard_order"), made.placements.size());
  made.local = plain_tensor(require(in_state(call.state, "_local_tensor"), "local tensor"));
}

const TorchRebuilder::Mesh& TorchRebuilder::mesh(const Node& node) {
  const auto known = meshes_.find(&node);
  if (known != meshes_.end()) return known->second;
  return meshes_.emplace(&node, read_mesh(node)).first->second;
}

TorchRebuilder::Mesh TorchRebuilder::read_mesh(const Node& node) {
  if (made_by(node) != TorchName::device_mesh) throw Unreadable("its device mesh is " + pickle::describe(node) + ", which is not known");
  Mesh made;
  Numbers strides;
  if (const Node* layout = attribute(node, "_layout")) {
    Layout read = layout_of(*layout);
    made.sizes = std::move(read.sizes);
    strides = std::move(read.strides);
  } else {
    const Shape shape = plain_tensor(require(attribute(node, "mesh"), "mesh's list of ranks")).shape;
    const Shape row_major = row_major_strides(shape);
    made.sizes.assign(shape.begin(), shape.end());
    strides.assign(row_major.begin(), row_major.end());
  }
  if (std::find(made.sizes.begin(), made.sizes.end(), 0) != made.sizes.end()) refuse("its mesh has a dimension of size 0");
  const Node* coordinate = attribute(node, "_coordinate_on_dim");
  if (coordinate == nullptr) {
    find_coordinate(node, strides, made);
  } else if (coordinate->kind == Kind::none) {
    made.outside = true;
  } else {
    made.coordinate = naturals(*coordinate, "its place in the mesh");
  }
  if (made.outside) return made;
  const bool fits =
      made.coordinate.size() == made.sizes.size() && std::equal(made.sizes.begin(), made.sizes.end(), made.coordinate.begin(),
                                                                [](std::uint64_t size, std::uint64_t at) { return at < size; });
  if (!fits) refuse("its place in the mesh lies outside of it");
  return made;
}

/// For meshes that do not state the coordinate: the saving rank's position in the mesh's list of ranks.
void TorchRebuilder::find_coordinate(const Node& node, const Numbers& strides, Mesh& mesh) {
  const Node* stated = attribute(node, "_rank");
  std::optional<std::uint64_t> rank = rank_;
  if (stated != nullptr && stated->kind == Kind::integer) rank = natural(*stated, "a mesh's rank");
  const auto ranks = mesh_ranks(node);
  if (!rank || !ranks) throw Unreadable("the place of the rank that saved it is not stated in its mesh");
  const auto found = std::find(ranks->begin(), ranks->end(), *rank);
  if (found == ranks->end()) {
    mesh.outside = true;
    return;
  }
  const auto position = static_cast<std::uint64_t>(found - ranks->begin());
  for (std::size_t i = 0; i < mesh.sizes.size(); ++i) {
    if (strides[i] == 0 && mesh.sizes[i] != 1) throw Unreadable("the place of the rank that saved it is not stated in its mesh");
    mesh.coordinate.push_back(mesh.sizes[i] == 1 ? 0 : position / strides[i] % mesh.sizes[i]);
  }
}

std::optional<TorchRebuilder::Numbers> TorchRebuilder::mesh_ranks(const Node& node) {
  for (const char* name : {"_flatten_rank_map", "_flatten_mesh_list"}) {
    const Node* list = attribute(node, name);
    if (list != nullptr && list->kind == Kind::tuple) return naturals(*list, "a mesh's rank");
  }
  for (const char* name : {"_rank_map", "mesh"}) {
    const Node* tensor = attribute(node, name);
    if (tensor != nullptr && is_tensor(*tensor)) return read_integers(plain_tensor(*tensor));
  }
  return std::nullopt;
}

/// The elements of a small tensor of 32 or 64 bit integers, in row-major order.
TorchRebuilder::Numbers TorchRebuilder::read_integers(const StoredTensor& tensor) {
  constexpr std::uint64_t most_bytes = 8 << 20;
  const std::uint64_t count = volume(tensor.shape), size = info(tensor.dtype).size_bytes;
  if (tensor.dtype != DType::i32 && tensor.dtype != DType::i64)
    refuse("a mesh's ranks are of type " + std::string(info(tensor.dtype).name));
  if (tensor.record_bytes > most_bytes || count > most_bytes)
    refuse("a mesh has a list of ranks of " + std::to_string(tensor.record_bytes) + " bytes");
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.record_bytes));
  file_.read_at(tensor.record_position, bytes);
  Numbers numbers;
  Shape at = Shape::filled(tensor.shape.size(), 0);
  for (std::uint64_t n = 0; n < count; ++n) {
    std::uint64_t element = tensor.position - tensor.record_position;
    for (std::size_t i = 0; i < at.size(); ++i) element += at[i] * tensor.strides[i] * size;
    std::uint64_t value = 0;
    for (std::uint64_t b = 0; b < size; ++b) {
      const std::uint64_t from = tensor.big_endian ? b : size - 1 - b;
      value = (value << 8) | std::to_integer<std::uint64_t>(bytes[static_cast<std::size_t>(element + from)]);
    }
    numbers.push_back(value);
    for (std::size_t i = at.size(); i-- > 0 && ++at[i] == tensor.shape[i];) at[i] = 0;
  }
  return numbers;
}

void TorchRebuilder::sharded_tensor(const Rebuild& call, TorchEntry& entry) const {
  entry.kind = TorchEntry::Kind::sharded_tensor;
  StoredShardedTensor& made = entry.sharded.emplace();
  made.global_shape = shape_of(*call.args[2], "its shape");
  const std::uint16_t dtype = call.args[1]->tag();
  if (torch_name(dtype) != TorchName::dtype) throw Unreadable("its element type is " + pickle::describe(*call.args[1]));
  made.dtype = torch_dtype(dtype);
  const auto state = call.state->elements();
  if (state.size() != 5 || state[0]->kind != Kind::list)
    refuse("a ShardedTensor's state has " + std::to_string(state.size()) + " parts, expected 5");
  for (const Node* shard : state[0]->elements()) {
    made.shards.push_back(local_shard(*shard));
    const auto& added = made.shards.back();
    if (!inside(Box{added.offset, added.extent}, made.global_shape)) {
      refuse("a shard at " + to_string(added.offset) + " of shape " + to_string(added.extent) + " leaves the tensor's shape " +
             to_string(made.global_shape));
    }
    if (added.tensor.dtype != made.dtype) refuse("a shard is of another element type than the tensor");
  }
  const Node* world_size = attribute(*state[2], "global_world_size");
  if (world_size != nullptr)
    made.world_size = static_cast<std::uint32_t>(std::min<std::uint64_t>(natural(*world_size, "the number of ranks"), UINT32_MAX));
}

StoredShardedTensor::LocalShard TorchRebuilder::local_shard(const Node& node) const {
  const Node& metadata = require(attribute(node, "metadata"), "shard's metadata");
  StoredShardedTensor::LocalShard shard;
  shard.offset = shape_of(require(attribute(metadata, "shard_offsets"), "shard's offsets"), "a shard's offset");
  shard.extent = shape_of(require(attribute(metadata, "shard_sizes"), "shard's sizes"), "a shard's size");
  shard.tensor = plain_tensor(require(attribute(node, "tensor"), "shard's tensor"));
  if (shard.tensor.shape != shard.extent) {
    refuse("a shard holds a tensor of shape " + to_string(shard.tensor.shape) + ", its metadata says " + to_string(shard.extent));
  }
  return shard;
}

}  // namespace unshard
