// Files of torch.save made by hand: a zip archive as torch writes it, and the pickled forms of tensors. Any number may be a lie.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/pickle_text.h"

namespace unshard::testing {

/// What a zip header says of one record.
struct ZipFields {
  std::string name;
  std::uint16_t flags = 0x0800, method = 0;
  std::uint32_t crc = 0;
  std::uint64_t packed_bytes = 0, size_bytes = 0, header_at = 0;
};

/// What the end records say.
struct ZipEnd {
  std::uint64_t count = 0, directory_bytes = 0, directory_at = 0, end64_at = 0;
};

struct ArchiveOptions {
  std::string folder = "archive";
  bool crc = false;
  bool zip64 = false;  ///< sizes and places in the extra fields of the directory
  bool end64 = true;   ///< the zip64 end records that torch always writes
  std::string comment = {};
  std::function<void(ZipFields&)> edit_local = {}, edit_central = {};
  std::function<void(ZipEnd&)> edit_end = {};
};

using Records = std::vector<std::pair<std::string, std::string>>;  ///< name without the folder, content

[[nodiscard]] std::string zip_archive(const Records& records, const ArchiveOptions& options = {});

/// An archive of torch.save around a pickle and its storages.
[[nodiscard]] std::string torch_archive(const std::string& pickle, const Records& storages = {}, const ArchiveOptions& options = {});

namespace pickled {

/// The persistent id of a storage and BINPERSID.
[[nodiscard]] std::string storage(const std::string& key, std::int64_t elements, const std::string& type = "FloatStorage");
[[nodiscard]] std::string ordered_dict();
/// _rebuild_tensor_v2
[[nodiscard]] std::string tensor(const std::string& storage, std::int64_t offset, const std::vector<std::int64_t>& shape,
                                 const std::vector<std::int64_t>& strides);
/// _rebuild_from_type_v2 around _rebuild_wrapper_subclass: a float32 DTensor or ShardedTensor.
[[nodiscard]] std::string subclass(const std::string& cls, const std::vector<std::int64_t>& shape, const std::string& state);

}  // namespace pickled
}  // namespace unshard::testing
