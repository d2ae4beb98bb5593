// The file that --output-format hdf5 writes: a dataset for each parameter in the root group (docs/hdf5.md).
#pragma once

#include <string>

#include "unshard/catalog.h"

namespace unshard {

/// Local. Whether the file begins as HDF5 files do.
[[nodiscard]] bool is_hdf5(File& file);

/// Local. Its parameters. Throws Error whose text starts with the path; every range has been compared with the file's size.
[[nodiscard]] ShardContents hdf5_contents(File& file, const std::string& label);

}  // namespace unshard
