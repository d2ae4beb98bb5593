// The storages of a torch.save file: where the bytes behind a persistent id lie.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/pickle.h"
#include "unshard/file_system.h"
#include "unshard/tensor.h"

namespace unshard {

/// The bytes of one storage in the file.
struct StorageRecord {
  std::string_view key;
  std::uint64_t position = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc = 0;
  bool has_crc = false;
};

/// Storages by key.
class StorageTable {
 public:
  /// The records are sorted here unless they are already, by length of key, then key. A key that occurs twice must have been refused
  /// before.
  explicit StorageTable(std::vector<StorageRecord> records = {});
  [[nodiscard]] const StorageRecord* find(std::string_view key) const;

 private:
  std::vector<StorageRecord> records_;
};

/// A storage as a tensor uses it.
struct Storage {
  StorageRecord record;
  DType dtype = DType::u8;
  bool untyped = false;  ///< the tensor states the element type
};

/// What a persistent id of torch.save says: ('storage', type, key, location, elements) and, in the legacy stream, a view (key, offset,
/// elements) or None.
struct StorageId {
  std::string_view key;
  std::uint64_t elements = 0;
  DType dtype = DType::u8;
  bool untyped = false;
  bool has_view = false;
  std::uint64_t view_offset = 0, view_elements = 0;
  [[nodiscard]] std::uint64_t element_bytes() const { return untyped ? 1 : info(dtype).size_bytes; }
};

/// A tensor that is sound but can't be had: kept apart from Error, which refuses the file.
class Unreadable {
 public:
  explicit Unreadable(std::string reason) : reason_(std::move(reason)) {}
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

/// Local, pure. Throws Error(bad_input) for what is no such id, Unreadable for storages of unknown element types. Texts name no file.
[[nodiscard]] StorageId parse_storage_id(const pickle::Node& id);

/// Local, pure. A number of 0 or more; throws Error(bad_input) saying that `what` is negative or no number.
[[nodiscard]] std::uint64_t natural(const pickle::Node& node, const char* what);

}  // namespace unshard
