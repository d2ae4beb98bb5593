// What the first bytes of a file say, and the zip container of torch.save since 1.6 (torch/serialization.py,
// caffe2/serialize/inline_container.cc):
//
//   <folder>/data.pkl     the objects; a tensor is a call of a rebuild function on a persistent id that names a storage
//   <folder>/byteorder    "little" or "big"; absent before 2.1: little
//   <folder>/data/<key>   the bytes of one storage
//   <folder>/version, .format_version, .storage_alignment, .data/serialization_id …: of no use here
#include "formats/torch_file.h"

#include <isa-l.h>

#include <algorithm>
#include <array>

#include "checked_math.h"
#include "formats/torch_legacy.h"
#include "formats/torch_names.h"
#include "formats/torch_rebuild.h"
#include "formats/torch_walk.h"
#include "formats/zip_directory.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t most_pickle_bytes = std::uint64_t{1} << 30;

[[noreturn]] void fail(const std::string& label, const std::string& what, ErrorCode code = ErrorCode::bad_input) {
  throw Error(code, label + ": " + what);
}

/// Known things that a file may be instead, by its first bytes.
struct Stranger {
  std::string_view begins;
  const char* what;
};
constexpr std::array strangers{
    Stranger{"version https://git-lfs", "is a git-lfs pointer, not the file itself; fetch it with git lfs pull"},
    Stranger{"<!DOCTYPE", "is an HTML page, not a checkpoint; download it again"},
    Stranger{"<!doctype", "is an HTML page, not a checkpoint; download it again"},
    Stranger{"<html", "is an HTML page, not a checkpoint; download it again"},
    Stranger{"PYTORCH1", "is a container of a PyTorch preview, which PyTorch itself can't read any more"},
    Stranger{"\x1f\x8b", "is compressed with gzip; unpack it"},
    Stranger{"\x28\xb5\x2f\xfd", "is compressed with zstd; unpack it"},
    Stranger{"GGUF", "is a GGUF file, not one of torch.save"},
    Stranger{"\x89HDF", "is an HDF5 file, not one of torch.save"},
};

std::string hexadecimal(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    if (!text.empty()) text += ' ';
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

[[noreturn]] void refuse_stranger(std::string_view head, std::uint64_t size_bytes, const std::string& label) {
  for (const Stranger& stranger : strangers) {
    if (head.starts_with(stranger.begins)) fail(label, std::string(stranger.what) + " (" + std::to_string(size_bytes) + " bytes)");
  }
  if (head.size() > 9 && head[8] == '{') fail(label, "is a safetensors file, not one of torch.save");
  constexpr std::size_t tar_mark_at = 257;
  if (head.size() >= tar_mark_at + 5 && head.substr(tar_mark_at, 5) == "ustar") {
    fail(label, "is a tar archive, the format of torch.save before 0.1.10; load it with an old PyTorch and save it again",
         ErrorCode::unsupported);
  }
  fail(label, "is no file of torch.save: its " + std::to_string(size_bytes) + " bytes begin with " + hexadecimal(head.substr(0, 8)));
}

/// A whole record, its CRC checked where the writer computed one.
std::vector<std::byte> read_record(File& file, const ZipRecord& record, const std::string& label) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(record.size_bytes));
  file.read_at(record.position, bytes);
  if (record.crc != 0 && crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) != record.crc) {
    fail(label, "record '" + printable(record.name) + "' is damaged: its CRC-32 does not match; copy the file again");
  }
  return bytes;
}

bool is_big_endian(File& file, const ZipRecord* record, const std::string& label) {
  constexpr std::uint64_t most_bytes = 16;
  if (record == nullptr) return false;
  if (record->size_bytes > most_bytes)
    fail(label, "record 'byteorder' has " + std::to_string(record->size_bytes) + " bytes, expected 'little' or 'big'");
  const auto bytes = read_record(file, *record, label);
  const std::string_view order(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (order != "little" && order != "big") fail(label, "record 'byteorder' says '" + printable(order) + "', expected 'little' or 'big'");
  return order == "big";
}

std::vector<StorageRecord> storages_in(const ZipDirectory& directory) {
  constexpr std::string_view prefix = "data/";
  std::vector<StorageRecord> storages;
  storages.reserve(directory.records().size());
  for (const ZipRecord& record : directory.records()) {
    if (record.name.starts_with(prefix))
      storages.push_back({record.name.substr(prefix.size()), record.position, record.size_bytes, record.crc, record.crc != 0});
  }
  return storages;
}

void refuse_compressed(const ZipDirectory& directory, const std::string& label) {
  for (const ZipRecord& record : directory.records()) {
    if (record.method != 0) {
      fail(label,
           "record '" + printable(record.name) + "' is compressed (zip method " + std::to_string(record.method) +
               "); unpack the archive and pack it again without compression (zip -0 -r)",
           ErrorCode::unsupported);
    }
  }
}

PickledFile read_zip_container(File& file, std::uint64_t position, std::uint64_t length, const std::string& label) {
  PickledFile read;
  read.directory = ZipDirectory::read(file, position, length, label);
  if (read.directory.find("constants.pkl") != nullptr) {
    fail(label, "is a TorchScript archive (record 'constants.pkl'), a program and not a state dict; save the module's state_dict() instead",
         ErrorCode::unsupported);
  }
  refuse_compressed(read.directory, label);
  const ZipRecord* record = read.directory.find("data.pkl");
  if (record == nullptr) fail(label, "is a zip archive but none of torch.save: it has no record 'data.pkl'");
  if (record->size_bytes > most_pickle_bytes)
    fail(label,
         "record 'data.pkl' has " + std::to_string(record->size_bytes) + " bytes, at most " + std::to_string(most_pickle_bytes) +
             " are supported",
         ErrorCode::unsupported);
  read.buffer = read_record(file, *record, label);
  read.buffer_position = record->position;
  read.big_endian = is_big_endian(file, read.directory.find("byteorder"), label);
  read.storages = StorageTable(storages_in(read.directory));
  read.tree = pickle::read(read.buffer, label + ": record 'data.pkl'", classify_torch_name);
  return read;
}

/// A file of pickle.dump: its tensors carry their storages inside the pickle.
PickledFile read_bare_pickle(File& file, const std::string& label) {
  constexpr std::uint64_t most_bytes = 256 << 20;
  if (file.size() > most_bytes)
    fail(label, "is a plain pickle of " + std::to_string(file.size()) + " bytes; save it with torch.save", ErrorCode::unsupported);
  PickledFile read;
  read.buffer.resize(static_cast<std::size_t>(file.size()));
  file.read_at(0, read.buffer);
  read.tree = pickle::read(read.buffer, label, classify_torch_name);
  return read;
}

}  // namespace

PickledFile read_pickled_file(File& file, const std::string& label) {
  constexpr std::uint64_t head_bytes = 512;
  std::vector<std::byte> head(static_cast<std::size_t>(std::min(file.size(), head_bytes)));
  file.read_at(0, head);
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.empty()) fail(label, "is empty (0 bytes)");
  if (text.starts_with("PK\x03\x04")) return read_zip_container(file, 0, file.size(), label);
  if (is_legacy_stream(head)) return read_legacy_stream(file, label);
  if (text.size() > 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5) return read_bare_pickle(file, label);
  refuse_stranger(text, file.size(), label);
}

TorchContents read_torch_file(File& file, const std::string& label, std::optional<std::uint32_t> rank) {
  const std::string name = printable(label, 4096);
  return walk_contents(file, read_pickled_file(file, name), name, rank);
}

PickledFile read_pickled_item(File& file, std::uint64_t position, std::uint64_t length, const std::string& label) {
  if (!range_fits(position, length, file.size())) {
    fail(label, std::to_string(length) + " bytes at " + std::to_string(position) + " go beyond the file's " + std::to_string(file.size()));
  }
  return read_zip_container(file, position, length, label);
}

TorchContents read_torch_item(File& file, std::uint64_t position, std::uint64_t length, const std::string& label) {
  const std::string name = printable(label, 4096);
  return walk_contents(file, read_pickled_item(file, position, length, name), name, std::nullopt);
}

}  // namespace unshard
