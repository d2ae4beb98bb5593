// Reading stored bytes once for all jobs that want them (piece_digests.h).
#pragma once

#include <vector>

#include "piece_digests.h"
#include "unshard/file_cache.h"

namespace unshard {

/// Local. The results of `jobs`, in their order, on the threads that the limits of `files` allow. Throws only for a signal.
[[nodiscard]] std::vector<PieceDigest> run_piece_jobs(FileCache& files, const std::vector<PieceJob>& jobs);

}  // namespace unshard
