// What is to be known of stored pieces without sending them: hashes, checksums, NaNs. Computed by ranks that see their files, so that copies
// on the disks of two nodes are compared in place.
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
    count,     ///< NaNs and infinities among the elements; no digest
  } kind = Kind::elements;
  Chunk chunk;
  DType from = DType::f32;
  DType to = DType::f32;
};

struct PieceDigest {
  Digest digest{};
  NonFinite non_finite;
  std::string failure;  ///< not empty: why the bytes can't be read
  ErrorCode code = ErrorCode::io;
};

/// Collective. Any number of jobs on each rank; their results in the same order. The bytes of all files are divided among the ranks that
/// see them; a rank reads what several jobs want once, in order of position, on its threads. What can't be read is in the result of its
/// jobs only.
[[nodiscard]] std::vector<PieceDigest> digest_pieces(Comm& comm, FileCache& files, const Source& source, const std::vector<PieceJob>& jobs);

}  // namespace unshard
