// DoRA: the factor of each row (or column) of an adapted weight is its trained magnitude divided by the norm of what base and update make
// together. The norm of a column needs the whole tensor, so factors are computed before the move; those tensors are read twice.
#pragma once

#include "unshard/catalog.h"
#include "unshard/file_cache.h"
#include "unshard/mapping.h"
#include "unshard/merge.h"

namespace unshard {

/// Collective. Computes the factors of mapping.decompositions, each on one rank, and puts them into the targets' computations. Throws
/// Error(unsupported) where some files are not seen by every node, Error(bad_input) naming a target with a row that is all zeros.
void set_factors(const Session& session, FileCache& files, const Source& source, const Catalog& catalog, Mapping& mapping);

}  // namespace unshard
