// A file that the ranks of a communicator write together: MPI_File.
//
// Measured with Open MPI 4.1 on a full file system: ompio returns MPI_SUCCESS for a write that was lost, but counts what it wrote; ROMIO
// returns MPI_ERR_IO, sometimes with a full count. So a write has succeeded only if the code is MPI_SUCCESS and the count is full. And
// MPI_File_open with a path that one rank can't open hangs in ompio, so each rank tries with POSIX first and all agree.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unshard/comm.h"

namespace unshard {

/// Collective over `comm`, whose MPI communicator is `handle`. Throws the same Error on every rank.
[[nodiscard]] std::unique_ptr<SharedFile> open_collective_file(Comm& comm, MPI_Comm handle, const std::string& path,
                                                               const std::vector<std::pair<std::string, std::string>>& hints);

}  // namespace unshard
