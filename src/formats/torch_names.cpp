// Where the names come from: torch/_utils.py, torch/_tensor.py, torch/storage.py, torch/distributed/tensor/, torch/distributed/_shard/. The
// classes of torch.distributed have moved between modules from 2.0 on (`_tensor.api`, `tensor`, `_tensor.placement_types` …), so they are
// known by name below that package; storages moved too and are known by name anywhere.
#include "formats/torch_names.h"

#include <algorithm>
#include <array>
#include <optional>

namespace unshard {
namespace {

struct Row {
  std::string_view module;
  std::string_view name;
  TorchName is;
};

constexpr std::array rows{
    Row{"collections", "OrderedDict", TorchName::ordered_dict},
    Row{"collections", "defaultdict", TorchName::default_dict},
    Row{"torch", "Size", TorchName::size},
    Row{"torch", "Tensor", TorchName::tensor_class},
    Row{"torch.nn.parameter", "Parameter", TorchName::tensor_class},
    Row{"torch.nn.parameter", "Buffer", TorchName::tensor_class},
    Row{"torch.storage", "_load_from_bytes", TorchName::load_from_bytes},
    Row{"_codecs", "encode", TorchName::encode},
    Row{"torch._utils", "_rebuild_tensor", TorchName::tensor_v1},
    Row{"torch._utils", "_rebuild_tensor_v2", TorchName::tensor_v2},
    Row{"torch._utils", "_rebuild_tensor_v3", TorchName::tensor_v3},
    Row{"torch._utils", "_rebuild_parameter", TorchName::parameter},
    Row{"torch._utils", "_rebuild_parameter_with_state", TorchName::parameter},
    Row{"torch._utils", "_rebuild_wrapper_subclass", TorchName::wrapper_subclass},
    Row{"torch._utils", "_rebuild_meta_tensor_no_storage", TorchName::meta_tensor},
    Row{"torch._utils", "_rebuild_sparse_tensor", TorchName::sparse_tensor},
    Row{"torch._utils", "_rebuild_sparse_csr_tensor", TorchName::sparse_tensor},
    Row{"torch._utils", "_rebuild_nested_tensor", TorchName::nested_tensor},
    Row{"torch._utils", "_rebuild_qtensor", TorchName::quantised_tensor},
    Row{"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", TorchName::device_from_cpu},
    Row{"torch._utils", "_rebuild_device_tensor_from_numpy", TorchName::device_from_numpy},
    Row{"torch._utils", "_rebuild_xla_tensor", TorchName::device_from_numpy},
    Row{"torch._tensor", "_rebuild_from_type", TorchName::from_type},
    Row{"torch._tensor", "_rebuild_from_type_v2", TorchName::from_type},
    Row{"torch.tensor", "_rebuild_from_type", TorchName::from_type},
    Row{"torch", "device", TorchName::plain_data},
    Row{"torch.serialization", "_get_layout", TorchName::plain_data},
    Row{"builtins", "set", TorchName::plain_data},
    Row{"builtins", "frozenset", TorchName::plain_data},
    Row{"builtins", "bytearray", TorchName::plain_data},
    Row{"builtins", "bytes", TorchName::plain_data},
    Row{"builtins", "complex", TorchName::plain_data},
    Row{"builtins", "slice", TorchName::plain_data},
    Row{"builtins", "range", TorchName::plain_data},
    Row{"builtins", "list", TorchName::plain_data},
    Row{"builtins", "dict", TorchName::plain_data},
    Row{"builtins", "tuple", TorchName::plain_data},
    Row{"builtins", "str", TorchName::plain_data},
    Row{"builtins", "int", TorchName::plain_data},
    Row{"builtins", "float", TorchName::plain_data},
    Row{"builtins", "bool", TorchName::plain_data},
    Row{"megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata", TorchName::dcp_metadata},
    Row{"numpy", "dtype", TorchName::plain_data},
    Row{"numpy", "ndarray", TorchName::plain_data},
};

/// Classes below torch.distributed.
constexpr std::array distributed_rows{
    Row{"", "DTensor", TorchName::dtensor},
    Row{"", "DTensorSpec", TorchName::dtensor_spec},
    Row{"", "DeviceMesh", TorchName::device_mesh},
    Row{"", "Shard", TorchName::shard},
    Row{"", "_StridedShard", TorchName::strided_shard},
    Row{"", "Replicate", TorchName::replicate},
    Row{"", "Partial", TorchName::partial},
    Row{"", "_Partial", TorchName::partial},
    Row{"", "ShardedTensor", TorchName::sharded_tensor},
    Row{"", "Metadata", TorchName::dcp_metadata},
    Row{"", "TensorStorageMetadata", TorchName::dcp_tensor},
    Row{"", "BytesStorageMetadata", TorchName::dcp_bytes},
    Row{"", "ChunkStorageMetadata", TorchName::dcp_chunk},
    Row{"", "MetadataIndex", TorchName::dcp_index},
    Row{"", "_StorageInfo", TorchName::dcp_storage},
    Row{"", "TensorProperties", TorchName::dcp_properties},
};

struct StorageRow {
  std::string_view prefix;
  DType dtype;
};
constexpr std::array storage_rows{
    StorageRow{"Float", DType::f32},    StorageRow{"BFloat16", DType::bf16},    StorageRow{"Half", DType::f16},
    StorageRow{"Double", DType::f64},   StorageRow{"Long", DType::i64},         StorageRow{"Int", DType::i32},
    StorageRow{"Short", DType::i16},    StorageRow{"Char", DType::i8},          StorageRow{"Byte", DType::u8},
    StorageRow{"Bool", DType::boolean}, StorageRow{"ComplexFloat", DType::c64}, StorageRow{"ComplexDouble", DType::c128},
};

constexpr std::array foreign_dtypes{"qint8", "quint8", "qint32",  "quint4x2", "quint2x4",
                                    "bits8", "bits16", "bits1x8", "bits2x4",  "bits4x2"};

std::uint16_t tag_of(TorchName name, DType dtype = DType{}) {
  return static_cast<std::uint16_t>((static_cast<unsigned>(name) << 8) | static_cast<unsigned>(dtype));
}

std::optional<std::uint16_t> find_row(std::span<const Row> table, std::string_view module, std::string_view name) {
  for (const Row& row : table) {
    if (row.name == name && row.module == module) return tag_of(row.is);
  }
  return std::nullopt;
}

std::uint16_t classify_storage(std::string_view name) {
  const std::string_view prefix = name.substr(0, name.size() - std::string_view("Storage").size());
  if (prefix == "Untyped") return tag_of(TorchName::untyped_storage);
  for (const StorageRow& row : storage_rows) {
    if (row.prefix == prefix) return tag_of(TorchName::storage, row.dtype);
  }
  return tag_of(TorchName::foreign_storage);
}

}  // namespace

std::uint16_t classify_torch_name(std::string_view module, std::string_view name) {
  if (const auto tag = find_row(rows, module, name)) return *tag;
  if (module == "torch.distributed" || module.starts_with("torch.distributed.")) {
    if (const auto tag = find_row(distributed_rows, "", name)) return *tag;
  }
  if (name.ends_with("Storage")) return classify_storage(name);
  if (module == "torch") {
    if (const auto dtype = dtype_from_torch(name)) return tag_of(TorchName::dtype, *dtype);
    if (std::find(foreign_dtypes.begin(), foreign_dtypes.end(), name) != foreign_dtypes.end()) return tag_of(TorchName::foreign_dtype);
  }
  return tag_of(TorchName::other);
}

}  // namespace unshard
