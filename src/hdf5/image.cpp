// A model's HDF5 file before its payload is there.
//
// HDF5 allocates space in the order in which things are made: metadata from a block of a size that we choose, contiguous datasets with early
// allocation behind one another at the end of the file. With a metadata block that is large enough everything of HDF5's own lies in front
// of the first dataset, so that a file is a header and tensors like any other output, and H5Dget_offset says where each tensor goes. The
// file is made in the folder for temporary files; it has its full length there but no payload, so it takes only the header's space.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "parts.h"
#include "value_types.h"

namespace unshard {
namespace {

constexpr const char* subject = "--output-format hdf5";

/// An empty file that goes away.
class TemporaryFile {
 public:
  TemporaryFile() : path_((std::filesystem::temp_directory_path() / "unshard-hdf5-XXXXXX").string()) {
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor_ < 0) throw Error(ErrorCode::io, printable(path_, 4096) + ": can't be made; set TMPDIR to a folder that can be written");
  }
  ~TemporaryFile() {
    ::unlink(path_.c_str());
    ::close(descriptor_);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(::lseek(descriptor_, 0, SEEK_END)); }
  [[nodiscard]] std::string first(std::uint64_t bytes) const {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t count = ::pread(descriptor_, text.data() + at, text.size() - at, static_cast<off_t>(at));
      if (count <= 0) throw Error(ErrorCode::io, printable(path_, 4096) + ": reading it back failed");
      at += static_cast<std::size_t>(count);
    }
    return text;
  }

 private:
  std::string path_;
  int descriptor_ = -1;
};

template <class Result>
Result made(Result result, const char* call) {
  return checked(result, std::string(subject) + ", in the folder for temporary files (TMPDIR)", call, ErrorCode::io);
}

Handle space_of(const Shape& shape) {
  std::vector<hsize_t> extents(shape.begin(), shape.end());
  if (extents.empty()) return Handle(made(H5Screate(H5S_SCALAR), "H5Screate"));
  return Handle(made(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), "H5Screate_simple"));
}

/// Where the datasets lie, as HDF5 says.
std::vector<std::uint64_t> make_file(const std::string& path, std::uint64_t meta_block_bytes, std::span<const Hdf5Dataset> datasets,
                                     std::span<const std::pair<std::string, std::string>> attributes) {
  const Handle access = writing_access(meta_block_bytes);
  const Handle creation(made(H5Pcreate(H5P_FILE_CREATE), "H5Pcreate"));
  made(H5Pset_obj_track_times(creation, false), "H5Pset_obj_track_times");
  const Handle links(made(H5Pcreate(H5P_LINK_CREATE), "H5Pcreate"));
  made(H5Pset_char_encoding(links, H5T_CSET_UTF8), "H5Pset_char_encoding");
  const Handle early = early_contiguous();
  Handle file(made(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access), "H5Fcreate"));
  for (const auto& [name, text] : attributes) put_text(file, name, text);
  std::vector<std::uint64_t> positions;
  for (const Hdf5Dataset& dataset : datasets) {
    const Handle type = stored_type(dataset.dtype);
    const Handle space = space_of(dataset.shape);
    const Handle set(made(H5Dcreate2(file, dataset.name.c_str(), type, space, links, early, H5P_DEFAULT), "H5Dcreate2"));
    put_text(set, dtype_attribute, std::string(info(dataset.dtype).name));
    const haddr_t offset = H5Dget_offset(set);
    positions.push_back(offset == HADDR_UNDEF ? std::numeric_limits<std::uint64_t>::max() : offset);
  }
  made(file.close(), "H5Fclose");
  return positions;
}

std::uint64_t bytes_of_dataset(const Hdf5Dataset& dataset) {
  std::uint64_t bytes = info(dataset.dtype).size_bytes;
  for (const std::uint64_t extent : dataset.shape) bytes *= extent;
  return bytes;
}

/// The header's size: where the first dataset begins; none when HDF5 has put something of its own behind that.
std::optional<std::uint64_t> header_bytes(std::span<const Hdf5Dataset> datasets, const std::vector<std::uint64_t>& positions,
                                          std::uint64_t file_bytes) {
  std::uint64_t first = file_bytes, payload = 0;
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    const std::uint64_t bytes = bytes_of_dataset(datasets[i]);
    if (bytes == 0) continue;
    first = std::min(first, positions[i]);
    payload += bytes;
  }
  if (first > file_bytes || file_bytes - first != payload) return std::nullopt;
  return first;
}

}  // namespace

Handle writing_access(std::uint64_t meta_block_bytes) {
  Handle access(made(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate"));
  made(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18), "H5Pset_libver_bounds");
  made(H5Pset_meta_block_size(access, meta_block_bytes), "H5Pset_meta_block_size");
  made(H5Pset_small_data_block_size(access, 0), "H5Pset_small_data_block_size");
  return access;
}

Handle early_contiguous() {
  Handle list(made(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate"));
  made(H5Pset_layout(list, H5D_CONTIGUOUS), "H5Pset_layout");
  made(H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY), "H5Pset_alloc_time");
  made(H5Pset_fill_time(list, H5D_FILL_TIME_NEVER), "H5Pset_fill_time");
  made(H5Pset_obj_track_times(list, false), "H5Pset_obj_track_times");
  return list;
}

void put_text(hid_t object, const std::string& name, const std::string& text) {
  const Handle type(made(H5Tcopy(H5T_C_S1), "H5Tcopy"));
  made(H5Tset_size(type, std::max<std::size_t>(text.size(), 1)), "H5Tset_size");
  made(H5Tset_strpad(type, H5T_STR_NULLPAD), "H5Tset_strpad");
  made(H5Tset_cset(type, H5T_CSET_UTF8), "H5Tset_cset");
  const Handle space(made(H5Screate(H5S_SCALAR), "H5Screate"));
  const Handle attribute(made(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), "H5Acreate2"));
  made(H5Awrite(attribute, type, text.c_str()), "H5Awrite");
}

Hdf5Image make_hdf5_image(std::span<const Hdf5Dataset> datasets, std::span<const std::pair<std::string, std::string>> attributes) {
  constexpr int most_tries = 6;
  std::uint64_t meta_block_bytes = 16384;
  for (const Hdf5Dataset& dataset : datasets) meta_block_bytes += 512 + 2 * dataset.name.size();
  for (const auto& [name, text] : attributes) meta_block_bytes += 1024 + name.size() + 2 * text.size();
  for (int tries = 0; tries < most_tries; ++tries, meta_block_bytes *= 2) {
    const TemporaryFile file;
    std::vector<std::uint64_t> positions = make_file(file.path(), meta_block_bytes, datasets, attributes);
    const auto first = header_bytes(datasets, positions, file.size());
    if (!first) continue;
    for (std::size_t i = 0; i < datasets.size(); ++i)
      if (bytes_of_dataset(datasets[i]) == 0) positions[i] = *first;
    return {file.first(*first), std::move(positions), file.size()};
  }
  throw Error(ErrorCode::unsupported, std::string(subject) + ": this version of HDF5 lays files out in another way; use safetensors");
}

}  // namespace unshard
