// The one thing that this library shows: its Hdf5 object.
#include <cstdlib>
#include <functional>

#include "child.h"
#include "parts.h"

namespace unshard {
namespace {

/// Throws Error(io) when the child does not end well.
void in_a_child(const std::string& path, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child < 0) throw Error(ErrorCode::io, printable(path, 4096) + ": no process could be started to write it");
  if (child == 0) end_as_child(work);
  if (!ends_well(child)) throw Error(ErrorCode::io, printable(path, 4096) + ": HDF5 could not write it; is the disk full?");
}

class Library final : public Hdf5 {
 public:
  [[nodiscard]] Hdf5Image make_image(std::span<const Hdf5Dataset> datasets,
                                     std::span<const std::pair<std::string, std::string>> attributes) const override {
    const Hdf5Guard guard;
    return make_hdf5_image(datasets, attributes);
  }
  [[nodiscard]] std::vector<Hdf5Dataset> list_datasets(const std::string& path) const override {
    const Hdf5Guard guard;
    return list_hdf5_datasets(path);
  }
  void write_tables(const std::string& path, std::span<const Hdf5Column> columns) const override {
    const Hdf5Guard guard;
    in_a_child(path, [&] { write_hdf5_tables(path, columns); });
  }
  [[nodiscard]] std::vector<Hdf5Column> read_tables(std::span<std::byte> file) const override {
    const Hdf5Guard guard;
    return read_hdf5_tables(file);
  }
};

}  // namespace
}  // namespace unshard

extern "C" __attribute__((visibility("default"))) const unshard::Hdf5* unshard_hdf5_v1() {
  // HDF5 locks every file that it opens, which some network file systems can't do. What is written here is written by one process.
  ::setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0);
  static const unshard::Library library;
  return &library;
}
