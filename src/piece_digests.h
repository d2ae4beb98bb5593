// Hashes of stored pieces, computed by the ranks that see their files: copies on the disks of two nodes are compared without sending them.
#pragma once

#include <string>
#include <vector>

#include "sha256.h"
#include "unshard/catalog.h"

namespace unshard {

struct PieceJob {
  enum class Kind : std::uint8_t {
    elements,  ///< row-major elements of the chunk, cast to `to`
    span,      ///< the bytes from the chunk's first element to its last, as stored
    record,    ///< CRC-32 of the record, in the first four bytes of the digest (lowest first)
  } kind = Kind::elements;
  Chunk chunk;
  DType from = DType::f32;
  DType to = DType::f32;
};

struct PieceDigest {
  Digest digest{};
  std::string failure;  ///< not empty: why the bytes can't be read
  ErrorCode code = ErrorCode::io;
};

/// Collective. Any number of jobs on each rank; their results in the same order. Each file is read by one rank, in order of position, equal
/// jobs once.
[[nodiscard]] std::vector<PieceDigest> digest_pieces(Comm& comm, FileCache& files, const Source& source, const std::vector<PieceJob>& jobs);

}  // namespace unshard
