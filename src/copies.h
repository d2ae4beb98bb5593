// Copies of one piece: replicas of hybrid sharding, ranks that differ in their tensor-parallel coordinate only, tensors that every rank
// stores whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "unshard/catalog.h"

namespace unshard {

struct TensorFinding {
  TensorId tensor = 0;
  Finding finding;
};

/// Local, pure. Whether two pieces lie in the same way inside records of the same size, so that records with equal checksums hold equal
/// pieces.
[[nodiscard]] bool same_geometry(const Chunk& a, const Chunk& b);
/// Local, pure. Whether two pieces are the same bytes of the same file.
[[nodiscard]] bool aliased(const Chunk& a, const Chunk& b);
/// Local, pure. Whether the piece is its whole record, so that different checksums mean different pieces.
[[nodiscard]] bool is_whole_record(const Chunk& chunk, DType dtype);
/// Local, pure. Whether reading the elements one by one is bounded by what is stored; a stride of 0 can claim any number.
[[nodiscard]] bool is_readable(const Chunk& chunk, DType dtype);

struct CopyFindings {
  std::vector<TensorFinding> findings;        ///< of the tensors at home here, sorted by tensor
  std::map<TensorId, NonFinite> non_finite;  ///< of those at home here that have any; only with `deep`
};

/// Collective. Compares the pieces of equal box among `catalog.chunks` (sorted): by checksum where that decides, else by reading as
/// `options` say. `deep` reads everything once: it also checks every record's CRC, and counts NaNs in one copy of each piece.
[[nodiscard]] CopyFindings compare_copies(Comm& comm, FileCache& files, const Source& source, const Catalog& catalog,
                                                        const CoverageOptions& options);

}  // namespace unshard
