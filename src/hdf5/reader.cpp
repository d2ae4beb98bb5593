// What a file holds, found out by a child process that may crash, or be stopped when it takes too long or too much.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "child.h"
#include "parts.h"
#include "value_types.h"
#include "wire.h"

namespace unshard {
namespace {

constexpr rlim_t most_seconds = 60;                            ///< of processor time
constexpr rlim_t most_bytes = rlim_t{4} << 30;                 ///< of memory
constexpr std::size_t most_answer_bytes = std::size_t{1} << 30;
constexpr std::size_t most_attribute_bytes = 64;
constexpr std::uint64_t answer_is_list = 0, answer_is_error = 1;

/// `file: dataset`, as messages begin.
std::string named(const std::string& path, const std::string& dataset) {
  return printable(path, 4096) + ": " + printable(dataset);
}

[[noreturn]] void refuse(const std::string& subject, const std::string& what) {
  throw Error(ErrorCode::unsupported, subject + ": " + what);
}

template <class Result>
Result opened(Result result, const std::string& path, const char* call) {
  return checked(result, path, call, ErrorCode::bad_input);
}

/// The text of the attribute `dtype`; "" without one. Fixed or variable length.
std::string dtype_text(hid_t set, const std::string& subject) {
  if (H5Aexists(set, dtype_attribute) <= 0) return "";
  const Handle attribute(opened(H5Aopen(set, dtype_attribute, H5P_DEFAULT), subject, "H5Aopen"));
  const Handle type(opened(H5Aget_type(attribute), subject, "H5Aget_type"));
  const Handle space(opened(H5Aget_space(attribute), subject, "H5Aget_space"));
  const bool is_text = H5Tget_class(type) == H5T_STRING && H5Sget_simple_extent_npoints(space) == 1;
  if (!is_text) refuse(subject, "its attribute dtype is no text; the name of an element type of PyTorch was expected");
  if (H5Tis_variable_str(type) > 0) {
    const Handle memory(opened(H5Tget_native_type(type, H5T_DIR_ASCEND), subject, "H5Tget_native_type"));
    char* text = nullptr;
    opened(H5Aread(attribute, memory, static_cast<void*>(&text)), subject, "H5Aread");
    std::string result(text == nullptr ? "" : text);
    H5free_memory(text);
    return result;
  }
  const std::size_t size = H5Tget_size(type);
  if (size > most_attribute_bytes) refuse(subject, "its attribute dtype has " + std::to_string(size) + " bytes; a short name was expected");
  std::string text(size, '\0');
  opened(H5Aread(attribute, type, text.data()), subject, "H5Aread");
  return text.substr(0, text.find('\0'));
}

DType dtype_of_set(hid_t set, const std::string& subject) {
  const Handle type(opened(H5Dget_type(set), subject, "H5Dget_type"));
  const std::string text = dtype_text(set, subject);
  if (text.empty()) {
    if (const auto dtype = dtype_of(type)) return *dtype;
    refuse(subject, "is stored in a type that no tensor has, or big-endian");
  }
  const auto dtype = dtype_from_torch(text);
  if (!dtype) refuse(subject, "its attribute dtype is " + printable(text) + ", which is no element type that this version knows");
  const Handle expected = stored_type(*dtype);
  if (H5Tequal(type, expected) <= 0) refuse(subject, "is not stored in the type that its attribute dtype, " + text + ", has in such files");
  return *dtype;
}

Hdf5Dataset dataset_of(hid_t set, const std::string& name, const std::string& subject) {
  Hdf5Dataset dataset;
  dataset.name = name;
  const Handle list(opened(H5Dget_create_plist(set), subject, "H5Dget_create_plist"));
  if (H5Pget_layout(list) != H5D_CONTIGUOUS || H5Pget_external_count(list) != 0 || H5Pget_nfilters(list) != 0)
    refuse(subject, "is stored in chunks, compressed or in another file; only contiguous datasets can be read");
  const Handle space(opened(H5Dget_space(set), subject, "H5Dget_space"));
  const int rank = opened(H5Sget_simple_extent_ndims(space), subject, "H5Sget_simple_extent_ndims");
  if (static_cast<std::size_t>(rank) > max_rank) refuse(subject, "has " + std::to_string(rank) + " dimensions");
  std::array<hsize_t, max_rank> extents{};
  if (rank > 0) opened(H5Sget_simple_extent_dims(space, extents.data(), nullptr), subject, "H5Sget_simple_extent_dims");
  bool is_empty = H5Sget_simple_extent_type(space) == H5S_NULL;
  for (int d = 0; d < rank; ++d) {
    dataset.shape.push_back(extents[static_cast<std::size_t>(d)]);
    is_empty = is_empty || extents[static_cast<std::size_t>(d)] == 0;
  }
  dataset.dtype = dtype_of_set(set, subject);
  const haddr_t offset = H5Dget_offset(set);
  if (offset == HADDR_UNDEF && !is_empty) refuse(subject, "has no data: nothing was ever written to it");
  dataset.position = is_empty ? 0 : offset;
  return dataset;
}

herr_t keep_name(hid_t, const char* name, const H5L_info_t* link, void* names) {
  if (link->type == H5L_TYPE_HARD) static_cast<std::vector<std::string>*>(names)->emplace_back(name);  // others lead to other files
  return 0;
}

/// In the child.
std::vector<Hdf5Dataset> list_here(const std::string& path) {
  const Handle access(opened(H5Pcreate(H5P_FILE_ACCESS), path, "H5Pcreate"));
  const Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access));
  if (file < 0) throw Error(ErrorCode::bad_input, printable(path, 4096) + ": is no HDF5 file that can be read; it is damaged or truncated");
  std::vector<std::string> names;
  opened(H5Literate(file, H5_INDEX_NAME, H5_ITER_INC, nullptr, keep_name, &names), path, "H5Literate");
  std::vector<Hdf5Dataset> datasets;
  for (const std::string& name : names) {
    const std::string subject = named(path, name);
    const Handle object(opened(H5Oopen(file, name.c_str(), H5P_DEFAULT), subject, "H5Oopen"));
    if (H5Iget_type(object) != H5I_DATASET) refuse(subject, "is a group; a dataset for each parameter, directly in the root group, was expected");
    datasets.push_back(dataset_of(object, name, subject));
  }
  std::stable_sort(datasets.begin(), datasets.end(),
                   [](const Hdf5Dataset& a, const Hdf5Dataset& b) { return a.position < b.position; });
  return datasets;
}

Bytes answer_of(const std::string& path) {
  WireWriter out;
  try {
    const std::vector<Hdf5Dataset> datasets = list_here(path);
    out.number(answer_is_list);
    for (const Hdf5Dataset& dataset : datasets) {
      out.text(dataset.name);
      out.number(static_cast<std::uint64_t>(dataset.dtype));
      out.shape(dataset.shape);
      out.number(dataset.position);
    }
  } catch (const Error& error) {
    out = WireWriter();
    out.number(answer_is_error);
    out.number(static_cast<std::uint64_t>(error.code()));
    out.text(error.what());
  }
  return out.take();
}

void limit(int resource, rlim_t value) {
  const rlimit both{value, value};
  ::setrlimit(static_cast<__rlimit_resource>(resource), &both);
}

[[noreturn]] void run_child(const std::string& path, int to) {
  end_as_child([&] {
    limit(RLIMIT_CPU, most_seconds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    limit(RLIMIT_DATA, most_bytes);
#endif
    const Bytes answer = answer_of(path);
    for (std::size_t at = 0; at < answer.size();) {
      const ssize_t count = ::write(to, answer.data() + at, answer.size() - at);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) ::_exit(1);
      at += static_cast<std::size_t>(count);
    }
  });
}

/// Everything that comes out of the pipe.
Bytes read_all(int from) {
  Bytes all;
  std::array<std::byte, 65536> block;
  while (all.size() < most_answer_bytes) {
    const ssize_t count = ::read(from, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    all.insert(all.end(), block.begin(), block.begin() + count);
  }
  return all;
}

/// The child's answer; empty when it ended in any other way than well.
Bytes ask_child(const std::string& path) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Error(ErrorCode::io, printable(path, 4096) + ": no pipe: " + std::strerror(errno));
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    run_child(path, ends[1]);
  }
  ::close(ends[1]);
  Bytes answer = child > 0 ? read_all(ends[0]) : Bytes{};
  ::close(ends[0]);
  if (child < 0) throw Error(ErrorCode::io, printable(path, 4096) + ": no process to read it: " + std::strerror(errno));
  return ends_well(child) ? answer : Bytes{};
}

}  // namespace

std::vector<Hdf5Dataset> list_hdf5_datasets(const std::string& path) {
  const Bytes answer = ask_child(path);
  if (answer.empty())
    throw Error(ErrorCode::bad_input, printable(path, 4096) + ": HDF5 fails on this file; it is damaged or was made to do harm");
  WireReader in(answer);
  if (in.number() == answer_is_error) {
    const auto code = static_cast<ErrorCode>(in.number());
    throw Error(code, in.text());
  }
  std::vector<Hdf5Dataset> datasets;
  while (!in.at_end()) {
    Hdf5Dataset dataset;
    dataset.name = in.text();
    dataset.dtype = static_cast<DType>(in.number_up_to(static_cast<std::uint64_t>(DType::c128)));
    dataset.shape = in.shape();
    dataset.position = in.number();
    datasets.push_back(std::move(dataset));
  }
  return datasets;
}

}  // namespace unshard
