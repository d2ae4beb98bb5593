// Comparing two models tensor by tensor, wherever their bytes lie: the work of `test`.
//
// Pairs of targets are cut into groups of at most 16 MiB, dealt to ranks by bytes; a rank makes the bytes of both sides in pieces of at
// most 1 MiB, the way a merge would make them, so that memory is bounded and a sharded checkpoint needs no merged copy. A piece is
// compared slice by slice (Arithmetic::slice_elements); slices of equal bits need no arithmetic. Groups and slices depend on shapes and
// types only, so sums are the same for any number of ranks and threads and any memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "unshard/arithmetic.h"
#include "unshard/catalog.h"
#include "unshard/file_cache.h"
#include "unshard/log.h"
#include "unshard/source.h"
#include "unshard/targets.h"

namespace unshard {

/// One of the two models.
struct Side {
  const Source& source;
  const Catalog& catalog;
  FileCache& files;
  const Targets& targets;
};

/// Two targets of one shape: numbers in Targets::targets of each side.
struct Pair {
  std::uint32_t a = 0, b = 0;
};

struct CompareOptions {
  Tolerance tolerance;
  bool like_dtype = false;
  WorkLimits limits;
  bool all_sums = false;  ///< the sums of pairs that differ in some bit, too
};

/// The least WorkLimits::buffer_bytes with which any two tensors can be compared by any number of ranks.
inline constexpr std::uint64_t least_comparing_bytes = std::uint64_t{2} << 20;

/// Local, pure. Whether elements of the two types can be compared as numbers: not complex ones with others.
[[nodiscard]] bool comparable(DType a, DType b);

/// Collective. What differs in each pair (of comparable types), by pair, the same on every rank. The sums are those of the whole tensor
/// where something differs (with `all_sums`: in any bit), and 0 where all bits are equal; elsewhere they are not to be used.
[[nodiscard]] std::vector<Difference> compare_pairs(Comm& comm, Log& log, const Side& a, const Side& b, std::span<const Pair> pairs,
                                                    const CompareOptions& options);

}  // namespace unshard
