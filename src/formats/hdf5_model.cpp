#include "hdf5_model.h"

#include <array>
#include <cstring>
#include <optional>

#include "checked_math.h"
#include "hdf5_library.h"
#include "unshard/error.h"

namespace unshard {
namespace {

Piece piece_of(const Hdf5Dataset& dataset, std::uint64_t file_bytes, const std::string& label) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::bad_input, printable(label) + ": " + printable(dataset.name) + ": " + what);
  };
  std::optional<std::uint64_t> bytes = info(dataset.dtype).size_bytes;
  for (const std::uint64_t extent : dataset.shape) bytes = bytes ? checked_multiply(*bytes, extent) : bytes;
  if (!bytes) refuse("claims the shape " + to_string(dataset.shape) + ", which has more bytes than any file");
  Piece piece{dataset.name, dataset.dtype, dataset.shape, {}};
  if (*bytes == 0) return piece;
  if (!range_fits(dataset.position, *bytes, file_bytes)) {
    refuse("its " + std::to_string(*bytes) + " bytes at " + std::to_string(dataset.position) + " are not in the file, which has " +
           std::to_string(file_bytes) + " bytes; it is truncated or damaged");
  }
  Chunk chunk;
  chunk.box = whole(dataset.shape);
  chunk.strides = row_major_strides(dataset.shape);
  chunk.position = chunk.record_position = dataset.position;
  chunk.record_bytes = *bytes;
  piece.chunks.push_back(chunk);
  return piece;
}

}  // namespace

bool is_hdf5(File& file) {
  constexpr std::array<unsigned char, 8> magic{0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  std::array<std::byte, magic.size()> start{};
  if (file.size() < start.size()) return false;
  file.read_at(0, start);
  return std::memcmp(start.data(), magic.data(), magic.size()) == 0;
}

ShardContents hdf5_contents(File& file, const std::string& label) {
  if (!is_hdf5(file)) throw Error(ErrorCode::bad_input, printable(label) + ": is no HDF5 file, or its start is damaged");
  ShardContents contents;
  std::uint64_t end = 0;  // of the dataset before
  for (const Hdf5Dataset& dataset : hdf5().list_datasets(file.path())) {
    contents.pieces.push_back(piece_of(dataset, file.size(), label));
    const Piece& piece = contents.pieces.back();
    if (piece.chunks.empty()) continue;
    if (piece.chunks[0].position < end)
      throw Error(ErrorCode::bad_input, printable(label) + ": " + printable(dataset.name) + ": its data overlaps another parameter's; the file is damaged");
    end = piece.chunks[0].position + piece.chunks[0].record_bytes;
  }
  return contents;
}

}  // namespace unshard
