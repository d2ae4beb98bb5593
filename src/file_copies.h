// Files of one name in two folders or on two nodes' disks: the same file, or two checkpoints mixed up?
#pragma once

#include <vector>

#include "unshard/catalog.h"

namespace unshard {

/// Collective. Reads the headers of every FileCopy of `source` and of the file it claims to be (no cost when there are none). Different
/// headers, or different checksums in the zip directory, are findings that name both places; with `deep` all bytes are compared.
[[nodiscard]] std::vector<Finding> compare_file_copies(Comm& comm, FileCache& files, const Source& source, bool deep = false);

}  // namespace unshard
