// Ranks of an MPI job as the Comm that every command takes.
#pragma once

#include <mpi.h>

#include <memory>

#include "unshard/comm.h"

namespace unshard {

/// Collective over `communicator`, which is duplicated and stays the caller's. MPI must have been started with MPI_THREAD_FUNNELED or more;
/// only the thread that started it may use the result, which must be gone before MPI_Finalize. Errors of MPI are thrown as Error(mpi),
/// whatever error handler `communicator` has. Tags of messages are 0 to 32766.
[[nodiscard]] std::unique_ptr<Comm> mpi_comm(MPI_Comm communicator);

}  // namespace unshard
