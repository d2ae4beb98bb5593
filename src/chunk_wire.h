// Chunk records as bytes: about 30 for a usual one, where the value in memory takes 264. The tensor, and with it the number of dimensions,
// is known from around.
#pragma once

#include "unshard/catalog.h"
#include "wire.h"

namespace unshard {

inline void write_chunk(WireWriter& out, const Chunk& chunk) {
  const unsigned flags = (chunk.has_crc ? 1U : 0U) | (chunk.big_endian ? 2U : 0U) | (chunk.plain ? 4U : 0U);
  out.number(chunk.file);
  out.number(flags);
  out.values(chunk.box.offset);
  out.values(chunk.box.extent);
  out.values(chunk.strides);
  out.number(chunk.record_position);
  out.number(chunk.position - chunk.record_position);  // small; wraps round and back where a record begins later
  out.number(chunk.record_bytes);
  if (chunk.has_crc) out.number(chunk.record_crc);
}

[[nodiscard]] inline Chunk read_chunk(WireReader& in, TensorId tensor, std::size_t rank) {
  Chunk chunk;
  chunk.tensor = tensor;
  chunk.file = static_cast<FileId>(in.number_up_to(UINT32_MAX));
  const std::uint64_t flags = in.number_up_to(7);
  chunk.has_crc = (flags & 1U) != 0;
  chunk.big_endian = (flags & 2U) != 0;
  chunk.plain = (flags & 4U) != 0;
  chunk.box.offset = in.values(rank);
  chunk.box.extent = in.values(rank);
  chunk.strides = in.values(rank);
  chunk.record_position = in.number();
  chunk.position = in.number() + chunk.record_position;
  chunk.record_bytes = in.number();
  if (chunk.has_crc) chunk.record_crc = static_cast<std::uint32_t>(in.number_up_to(UINT32_MAX));
  return chunk;
}

}  // namespace unshard
