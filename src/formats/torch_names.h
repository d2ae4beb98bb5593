// The closed list of names that a checkpoint may use to say what a tensor is. Every other name is inert.
#pragma once

#include <cstdint>
#include <string_view>

#include "formats/pickle.h"
#include "unshard/tensor.h"

namespace unshard {

enum class TorchName : std::uint8_t {
  other,
  plain_data,  ///< data of Python or torch without a tensor in it, whose name says nothing to a user: set, slice, device, layout …
  ordered_dict,
  default_dict,
  size,             ///< torch.Size
  dtype,            ///< with an element type that is known
  foreign_dtype,    ///< quantised and bit types
  storage,          ///< a typed storage, with its element type
  untyped_storage,  ///< counted in bytes
  foreign_storage,
  load_from_bytes,  ///< a storage inside a plain pickle
  encode,           ///< bytes as a Latin-1 text (protocol 2)
  tensor_class,     ///< torch.Tensor, Parameter, Buffer: classes that add nothing to the data
  // Functions of torch._utils and torch._tensor.
  tensor_v1,
  tensor_v2,
  tensor_v3,
  parameter,
  from_type,
  wrapper_subclass,
  device_from_cpu,
  device_from_numpy,
  meta_tensor,
  sparse_tensor,
  nested_tensor,
  quantised_tensor,
  // Classes of torch.distributed.
  dtensor,
  dtensor_spec,
  device_mesh,
  shard,
  strided_shard,
  replicate,
  partial,
  sharded_tensor,
  // Classes of torch.distributed.checkpoint, in a .metadata.
  dcp_metadata,
  dcp_tensor,
  dcp_bytes,
  dcp_chunk,
  dcp_index,
  dcp_storage,
  dcp_properties,
};

/// Local. The number that pickle::read gives to a name.
[[nodiscard]] std::uint16_t classify_torch_name(std::string_view module, std::string_view name);

[[nodiscard]] inline TorchName torch_name(std::uint16_t tag) {
  return static_cast<TorchName>(tag >> 8);
}
/// Of a dtype or storage.
[[nodiscard]] inline DType torch_dtype(std::uint16_t tag) {
  return static_cast<DType>(tag & 0xFF);
}
/// Of the name that made a call or object; other for everything else.
[[nodiscard]] inline TorchName made_by(const pickle::Node& node) {
  return torch_name(node.callee_tag());
}

}  // namespace unshard
