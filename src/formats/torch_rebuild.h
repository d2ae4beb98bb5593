// From the nodes of a pickle to tensors: what torch's rebuild functions would make of their arguments, as descriptions of bytes in the
// file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/pickle.h"
#include "formats/torch_file.h"
#include "formats/torch_names.h"
#include "formats/torch_storage.h"
#include "formats/zip_directory.h"

namespace unshard {

/// A file whose pickle has been read: what rebuilding needs of it. Movable, not copyable: nodes and keys are views of its buffers.
struct PickledFile {
  std::vector<std::byte> buffer;      ///< holds the pickle; its nodes are views of it
  std::uint64_t buffer_position = 0;  ///< where it lies in the file
  std::optional<pickle::Tree> tree;
  std::optional<pickle::Tree> keys;  ///< of a legacy stream: holds the storages' keys
  StorageTable storages;
  ZipDirectory directory;  ///< of a zip container; holds the storages' keys
  bool big_endian = false;
};

/// Local. Reads the pickle of a torch.save file, and where its storages lie. Throws Error whose text starts with `label`.
[[nodiscard]] PickledFile read_pickled_file(File& file, const std::string& label);
/// The same of the zip container in the `length` bytes at `position`.
[[nodiscard]] PickledFile read_pickled_item(File& file, std::uint64_t position, std::uint64_t length, const std::string& label);

class TorchRebuilder {
 public:
  /// `rank`: of the process that saved the file, where its name tells; needed for meshes that do not state their coordinate.
  TorchRebuilder(File& file, const PickledFile& pickled, std::optional<std::uint32_t> rank) : file_(file), pickled_(pickled), rank_(rank) {}

  /// Whether a call or object stands for a tensor, readable or not. Local, pure.
  [[nodiscard]] static bool is_tensor(const pickle::Node& node);

  /// Local. Fills kind, tensor, dtensor and sharded of `entry`. Throws Unreadable with the reason when the tensor can't be had,
  /// Error(bad_input) when the file lies about it; neither text names file or tensor. May read a mesh's few ranks.
  void rebuild(const pickle::Node& node, TorchEntry& entry);

  /// The class of a subclass of Tensor whose name is not known, or empty: its data was taken as that of a plain tensor. Of the last call of
  /// rebuild.
  [[nodiscard]] const std::string& unknown_class() const { return unknown_class_; }

 private:
  using Numbers = std::vector<std::uint64_t>;
  /// A DeviceMesh, as far as placements need it.
  struct Mesh {
    Numbers sizes;
    Numbers coordinate;
    bool outside = false;
  };

  /// A call of a rebuild function, wrappers like Parameter taken off.
  struct Rebuild {
    TorchName function = TorchName::other;
    std::span<const pickle::Node* const> args;
    const pickle::Node* type = nullptr;   ///< class of the result, where it is stated
    const pickle::Node* state = nullptr;  ///< what is set on the result, where anything is
    const pickle::Node* dtype = nullptr;  ///< element type of the result, where it is stated beside a tensor
  };

  [[nodiscard]] static Rebuild unwrapped(const pickle::Node& node);
  static void unwrap_once(Rebuild& call);
  /// The tensor of a node that must be a plain one.
  StoredTensor plain_tensor(const pickle::Node& node) const;
  StoredTensor plain_tensor(const Rebuild& call) const;
  Storage storage_of(const pickle::Node& node) const;
  Storage storage_in_bytes(const pickle::Node& node) const;

  // In torch_distributed.cpp:
  void dtensor(const Rebuild& call, TorchEntry& entry);
  void sharded_tensor(const Rebuild& call, TorchEntry& entry) const;
  StoredShardedTensor::LocalShard local_shard(const pickle::Node& node) const;
  const Mesh& mesh(const pickle::Node& node);
  Mesh read_mesh(const pickle::Node& node);
  void find_coordinate(const pickle::Node& node, const Numbers& strides, Mesh& mesh);
  std::optional<Numbers> mesh_ranks(const pickle::Node& node);
  Numbers read_integers(const StoredTensor& tensor);

  File& file_;
  const PickledFile& pickled_;
  std::optional<std::uint32_t> rank_;
  std::unordered_map<const pickle::Node*, Mesh> meshes_;
  std::string unknown_class_;
};

/// Local, pure. A tuple, list or torch.Size of sizes. Throws Error(bad_input) naming `what`; Unreadable for more than max_rank of them.
[[nodiscard]] Shape shape_of(const pickle::Node& node, const char* what);

/// Local, pure. Checked against `record`; overflow-safe. Throws Error(bad_input).
[[nodiscard]] StoredTensor checked_view(const StorageRecord& record, DType dtype, std::uint64_t offset, const Shape& shape,
                                        const Shape& strides);

}  // namespace unshard
