// The records of a zip archive as torch.save writes it: where the bytes of each lie. No record is read here, and nothing is unpacked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unshard/file_system.h"

namespace unshard {

/// One record.
struct ZipRecord {
  std::string_view name;       ///< without the archive's folder: "data/0"
  std::uint64_t position = 0;  ///< byte position of its data in the file
  std::uint64_t size_bytes = 0;
  std::uint32_t crc = 0;     ///< CRC-32 of the data; 0: not computed by the writer (or by chance)
  std::uint16_t method = 0;  ///< 0: stored as it is; else compressed, and size_bytes is what it takes in the file
};

/// The directory of an archive. Names are views into it. Movable.
class ZipDirectory {
 public:
  /// Local. Reads the archive in the `length` bytes at `position` of `file`; that range is no larger than the file. Throws Error whose text
  /// begins with `label`: bad_input for whatever is truncated, damaged or states what is not so (places outside the archive, overlaps,
  /// names twice or outside the one folder, headers that disagree); unsupported for encrypted records and archives of several volumes.
  /// Compressed records are listed: it is for the caller to refuse them.
  [[nodiscard]] static ZipDirectory read(File& file, std::uint64_t position, std::uint64_t length, const std::string& label);

  [[nodiscard]] std::string_view folder() const { return folder_; }
  /// Sorted by length of name, then name: the order in which torch.save numbers storages.
  [[nodiscard]] std::span<const ZipRecord> records() const { return records_; }
  /// Null when there is none of this name.
  [[nodiscard]] const ZipRecord* find(std::string_view name) const;

  /// The order of records().
  [[nodiscard]] static bool before(std::string_view a, std::string_view b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

 private:
  friend class ZipReader;
  std::vector<std::byte> directory_;
  std::string_view folder_;
  std::vector<ZipRecord> records_;
};

}  // namespace unshard
