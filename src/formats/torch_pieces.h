// From tensors of a torch.save file to pieces of a catalog.
#pragma once

#include "formats/torch_file.h"
#include "unshard/catalog.h"

namespace unshard {

/// Local, pure. Where the elements lie; the box is not set.
[[nodiscard]] inline Chunk chunk_of(const StoredTensor& stored) {
  Chunk chunk;
  chunk.position = stored.position;
  chunk.strides = stored.strides;
  chunk.record_position = stored.record_position;
  chunk.record_bytes = stored.record_bytes;
  chunk.record_crc = stored.record_crc;
  chunk.has_crc = stored.has_crc;
  chunk.big_endian = stored.big_endian;
  return chunk;
}

/// Local, pure. A tensor that the file holds whole.
[[nodiscard]] inline Piece whole_piece(const TorchEntry& entry) {
  Piece piece{entry.path, entry.tensor.dtype, entry.tensor.shape, {}};
  if (volume(piece.shape) == 0) return piece;
  piece.chunks.push_back(chunk_of(entry.tensor));
  piece.chunks.back().box = whole(piece.shape);
  return piece;
}

}  // namespace unshard
