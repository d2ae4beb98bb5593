// The functions behind the one Hdf5 object; hdf5_library.h says what they do. All are called with a Hdf5Guard held.
#pragma once

#include "handle.h"
#include "hdf5_library.h"

namespace unshard {

[[nodiscard]] Hdf5Image make_hdf5_image(std::span<const Hdf5Dataset> datasets,
                                        std::span<const std::pair<std::string, std::string>> attributes);
[[nodiscard]] std::vector<Hdf5Dataset> list_hdf5_datasets(const std::string& path);
void write_hdf5_tables(const std::string& path, std::span<const Hdf5Column> columns);
[[nodiscard]] std::vector<Hdf5Column> read_hdf5_tables(std::span<std::byte> file);

/// A file access list for what this program writes: readable by HDF5 1.8 and later, metadata in one block of `meta_block_bytes`.
[[nodiscard]] Handle writing_access(std::uint64_t meta_block_bytes);
/// A list for making datasets: contiguous, allocated at once, never filled, without times (the same file every time).
[[nodiscard]] Handle early_contiguous();
/// A text attribute of `object`.
void put_text(hid_t object, const std::string& name, const std::string& text);

}  // namespace unshard
