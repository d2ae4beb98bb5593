// A file written by torch.save (zip container, or the legacy stream): every tensor in it with the place of its bytes, and every other
// object as inert, named data. Nothing is executed, looked up or imported.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unshard/catalog.h"
#include "unshard/file_system.h"
#include "unshard/tensor.h"

namespace unshard {

/// A view of stored bytes: element (i0, i1, …) lies at position + sum i_k * strides_k * size_of(dtype). Checked against the record.
struct StoredTensor {
  DType dtype = DType::f32;
  Shape shape;
  Shape strides;                      ///< elements
  std::uint64_t position = 0;         ///< byte position in the file of element 0
  std::uint64_t record_position = 0;  ///< of the storage's bytes
  std::uint64_t record_bytes = 0;
  std::uint32_t record_crc = 0;
  bool has_crc = false;
  bool big_endian = false;
};

/// One placement of a DTensor, as stored.
struct Placement {
  enum class Kind : std::uint8_t { shard, strided_shard, replicate, partial } kind = Kind::replicate;
  std::uint64_t dim = 0;
  std::uint64_t split_factor = 1;
};

/// A DTensor: this rank's piece and how it was cut.
struct StoredDTensor {
  Shape global_shape;
  StoredTensor local;
  std::vector<Placement> placements;  ///< one per mesh dimension
  std::vector<std::uint64_t> mesh_sizes;
  std::vector<std::uint64_t> coordinate;   ///< of the saving rank in the mesh; empty: the rank is outside the mesh (no data)
  std::vector<std::uint64_t> shard_order;  ///< mesh dimensions in the order in which they were applied; empty: left to right
  bool outside_mesh = false;
};

/// FSDP1's ShardedTensor.
struct StoredShardedTensor {
  struct LocalShard {
    Shape offset, extent;
    StoredTensor tensor;
  };
  Shape global_shape;
  DType dtype = DType::f32;
  std::vector<LocalShard> shards;
  std::uint32_t world_size = 0;  ///< 0: not stated
};

/// A tensor found at a path of the object tree: keys joined by '.', as state dicts do.
struct TorchEntry {
  std::string path;
  std::vector<std::string> keys;  ///< the same path, unjoined
  enum class Kind : std::uint8_t { tensor, dtensor, sharded_tensor } kind = Kind::tensor;
  StoredTensor tensor;
  std::optional<StoredDTensor> dtensor;
  std::optional<StoredShardedTensor> sharded;
};

struct TorchContents {
  std::vector<TorchEntry> entries;  ///< in stored order
  std::vector<ObjectNote> objects;  ///< other things, and tensors that can't be had without code (`what` says why)
  /// Paths whose value is a tensor-like object that could not be resolved: reason by path. Using one as a weight is an error.
  std::vector<std::pair<std::string, std::string>> unreadable;
};

/// Local. Throws Error(bad_input | unsupported) whose text starts with `label`, for anything that is damaged, lies or is no such file.
/// `rank`: of the process that saved it, where the file's name tells; needed for device meshes that do not state their coordinate.
[[nodiscard]] TorchContents read_torch_file(File& file, const std::string& label, std::optional<std::uint32_t> rank = std::nullopt);

/// Local. The same for a zip container in the `length` bytes at `position` of a file that holds several, as .distcp files do.
[[nodiscard]] TorchContents read_torch_item(File& file, std::uint64_t position, std::uint64_t length, const std::string& label);

}  // namespace unshard
