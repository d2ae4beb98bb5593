// A catalog as tables and back (docs/cache.md).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hdf5_library.h"
#include "send_home.h"
#include "unshard/catalog.h"

namespace unshard {

/// The files that a catalog is of.
struct CachedFile {
  std::string path;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const CachedFile&, const CachedFile&) = default;
};

/// Everything of a Catalog, with all chunks, packed by tensor.
struct CatalogContent {
  std::string format;
  std::vector<CachedFile> files;
  std::vector<TensorRow> tensors;
  std::vector<PackedRecords> records;  ///< of each tensor
  std::vector<ObjectNote> objects;
  std::vector<Finding> notes;
  Facts facts;
};

/// Local, pure. `chunks` are sorted by tensor.
[[nodiscard]] std::vector<Hdf5Column> tables_of(const CatalogContent& content, std::span<const Chunk> chunks);

/// Local, pure. Throws Error(bad_input) saying what is wrong with the tables: each row is checked as the source's own headers are.
[[nodiscard]] CatalogContent content_of(std::vector<Hdf5Column> columns);

}  // namespace unshard
