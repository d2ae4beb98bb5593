// Tables as an HDF5 file: a group for each table, a dataset for each column, one-dimensional and contiguous. Numbers are stored in the
// narrowest unsigned type that holds the column; bytes as unsigned 8-bit numbers in a dataset whose name ends in `_bytes`.
#include <algorithm>
#include <set>

#include "parts.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_column_bytes = std::uint64_t{1} << 34;
constexpr std::string_view bytes_suffix = "_bytes";

template <class Result>
Result made(Result result, const std::string& path, const char* call) {
  return checked(result, path, call, ErrorCode::io);
}

template <class Result>
Result opened(Result result, const char* call) {
  return checked(result, std::string("tables"), call, ErrorCode::bad_input);
}

hid_t narrowest_type(const std::vector<std::uint64_t>& numbers) {
  std::uint64_t most = 0;
  for (const std::uint64_t number : numbers) most = std::max(most, number);
  return most <= 0xff ? H5T_STD_U8LE : most <= 0xffff ? H5T_STD_U16LE : most <= 0xffffffff ? H5T_STD_U32LE : H5T_STD_U64LE;
}

bool holds_bytes(const std::string& name) {
  return name.ends_with(bytes_suffix);
}

void write_column(hid_t file, const std::string& path, const Hdf5Column& column) {
  const bool is_bytes = holds_bytes(column.name);
  const hsize_t count = is_bytes ? column.bytes.size() : column.numbers.size();
  const Handle space(made(H5Screate_simple(1, &count, nullptr), path, "H5Screate_simple"));
  const Handle list = early_contiguous();
  const hid_t stored = is_bytes ? H5T_STD_U8LE : narrowest_type(column.numbers);
  const Handle set(made(H5Dcreate2(file, column.name.c_str(), stored, space, H5P_DEFAULT, list, H5P_DEFAULT), path, "H5Dcreate2"));
  if (count == 0) return;
  const void* data = is_bytes ? static_cast<const void*>(column.bytes.data()) : column.numbers.data();
  made(H5Dwrite(set, is_bytes ? H5T_NATIVE_UINT8 : H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, data), path, "H5Dwrite");
}

Hdf5Column read_column(hid_t file, const std::string& name) {
  Hdf5Column column{name, {}, {}};
  const Handle set(opened(H5Dopen2(file, name.c_str(), H5P_DEFAULT), "H5Dopen2"));
  const Handle space(opened(H5Dget_space(set), "H5Dget_space"));
  const hssize_t count = opened(H5Sget_simple_extent_npoints(space), "H5Sget_simple_extent_npoints");
  if (static_cast<std::uint64_t>(count) > most_column_bytes / sizeof(std::uint64_t))
    throw Error(ErrorCode::bad_input, "tables: " + printable(name) + " claims " + std::to_string(count) + " rows");
  if (count == 0) return column;
  if (holds_bytes(name)) {
    column.bytes.resize(static_cast<std::size_t>(count));
    opened(H5Dread(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, column.bytes.data()), "H5Dread");
  } else {
    column.numbers.resize(static_cast<std::size_t>(count));
    opened(H5Dread(set, H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, column.numbers.data()), "H5Dread");
  }
  return column;
}

herr_t keep_name(hid_t, const char* name, const H5L_info_t* link, void* names) {
  if (link->type == H5L_TYPE_HARD) static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

std::vector<std::string> names_in(hid_t group) {
  std::vector<std::string> names;
  opened(H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, nullptr, keep_name, &names), "H5Literate");
  return names;
}

}  // namespace

void write_hdf5_tables(const std::string& path, std::span<const Hdf5Column> columns) {
  const Handle access = writing_access(std::uint64_t{1} << 16);
  const Handle creation(made(H5Pcreate(H5P_FILE_CREATE), path, "H5Pcreate"));
  made(H5Pset_obj_track_times(creation, false), path, "H5Pset_obj_track_times");
  made(H5Pset_userblock(creation, hdf5_userblock_bytes), path, "H5Pset_userblock");
  Handle file(made(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access), path, "H5Fcreate"));
  const Handle untimed(made(H5Pcreate(H5P_GROUP_CREATE), path, "H5Pcreate"));
  made(H5Pset_obj_track_times(untimed, false), path, "H5Pset_obj_track_times");
  std::set<std::string> groups;
  for (const Hdf5Column& column : columns) {
    const std::string group = column.name.substr(0, column.name.find('/'));
    if (groups.insert(group).second)
      Handle(made(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, untimed, H5P_DEFAULT), path, "H5Gcreate2")).close();
    write_column(file, path, column);
  }
  made(file.close(), path, "H5Fclose");
}

std::vector<Hdf5Column> read_hdf5_tables(std::span<std::byte> bytes) {
  const Handle access(opened(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate"));
  opened(H5Pset_fapl_core(access, 1 << 20, false), "H5Pset_fapl_core");
  opened(H5Pset_file_image(access, bytes.data(), bytes.size()), "H5Pset_file_image");
  const Handle file(opened(H5Fopen("tables", H5F_ACC_RDONLY, access), "H5Fopen"));
  std::vector<Hdf5Column> columns;
  for (const std::string& group_name : names_in(file)) {
    const Handle group(opened(H5Gopen2(file, group_name.c_str(), H5P_DEFAULT), "H5Gopen2"));
    for (const std::string& name : names_in(group)) columns.push_back(read_column(file, group_name + "/" + name));
  }
  return columns;
}

}  // namespace unshard
