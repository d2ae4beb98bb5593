// What the program needs of HDF5, done in a library of its own (unshard_hdf5) that is loaded only when such a file is written or read:
// loading HDF5 and what it depends on takes longer than a small command. No type of HDF5 appears here.
//
// All functions are Local, thread-safe (one call at a time reaches HDF5), and throw Error whose text starts with the path where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unshard/tensor.h"

namespace unshard {

/// A parameter in a file of a model.
struct Hdf5Dataset {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t position = 0;  ///< of its first byte in the file; nothing for one without elements
};

/// A file whose payload is not there yet: everything that HDF5 itself writes lies in front of the first dataset.
struct Hdf5Image {
  std::string header;
  std::vector<std::uint64_t> positions;  ///< of each dataset's first byte; header.size() for one without elements
  std::uint64_t size_bytes = 0;
};

/// One column of a table: numbers, or bytes.
struct Hdf5Column {
  std::string name;  ///< `table/column`
  std::vector<std::uint64_t> numbers;
  std::string bytes;  ///< when there are no numbers
};

/// A file of tables begins with so many bytes that HDF5 leaves to others.
inline constexpr std::uint64_t hdf5_userblock_bytes = 512;

class Hdf5 {
 public:
  virtual ~Hdf5() = default;
  /// The same bytes every time for the same version of HDF5. `attributes` are texts of the root group.
  [[nodiscard]] virtual Hdf5Image make_image(std::span<const Hdf5Dataset> datasets,
                                             std::span<const std::pair<std::string, std::string>> attributes) const = 0;
  /// The datasets of the root group, in the order in which they lie in the file. The file is read by a child process, because HDF5 was not
  /// written for files that somebody has damaged on purpose: a crash there is an Error(bad_input) here, and so is too long a time.
  /// Positions and shapes are what the file claims.
  [[nodiscard]] virtual std::vector<Hdf5Dataset> list_datasets(const std::string& path) const = 0;

  /// A whole file of tables. `write_tables` makes `path` new.
  virtual void write_tables(const std::string& path, std::span<const Hdf5Column> columns) const = 0;
  /// The columns of a file of tables that lies in memory. Only for bytes whose checksum has been compared.
  [[nodiscard]] virtual std::vector<Hdf5Column> read_tables(std::span<std::byte> file) const = 0;
};

/// Loads the library at the first call. Throws Error(internal) naming the path when it can't be loaded.
[[nodiscard]] const Hdf5& hdf5();

}  // namespace unshard
