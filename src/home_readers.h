// Who reads a shard when owners don't read for themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "unshard/comm.h"
#include "unshard/source.h"

namespace unshard {

/// Local, pure; the same on every rank. The rank that reads each file: one that sees it, so that every rank reads about as many bytes.
/// Throws Error(bad_input) for a file that no rank of this job sees.
[[nodiscard]] std::vector<int> home_readers(const std::vector<ShardFile>& files, const Comm& comm);

}  // namespace unshard
