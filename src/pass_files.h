// Open files passed from one process to the others of its node, so that each shard is opened once there, and read by every rank that needs
// it.
#pragma once

#include "unshard/comm.h"
#include "unshard/file_cache.h"
#include "unshard/source.h"

namespace unshard {

/// Collective, of ranks on one node. Afterwards `files` of every rank holds every file of `source`, each opened by the one rank that
/// file_owners names; its limit is enough for all of them. Throws the same Error on every rank where that is not possible: files have no
/// descriptors (a test's disk), or the processes can't reach each other (containers of their own). Nothing has changed then.
void pass_files_on(Comm& comm, FileCache& files, const Source& source);

}  // namespace unshard
