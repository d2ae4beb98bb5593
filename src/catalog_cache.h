// --cache-dir: the catalog of a checkpoint in an HDF5 file, so that the next command needs no header of a thousand shards. docs/cache.md
// describes the file.
#pragma once

#include <string>

#include "unshard/catalog.h"
#include "unshard/merge.h"

namespace unshard {

/// Collective. read_catalog(), or what an earlier command has kept of it in `cache_dir` ("": nowhere) for the same files: path, size, time
/// of change and inode of each, as `tree` has them. A file there that is damaged or out of date is ignored, with one line, and written
/// again; one that can't be written is a line too, never an error. Catalogs with errors are not kept.
[[nodiscard]] Catalog read_cached_catalog(const Session& session, FileCache& files, const Tree& tree, const Source& source,
                                          const std::string& cache_dir);

}  // namespace unshard
