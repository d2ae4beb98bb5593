// Which ranks are on one node.
#pragma once

#include <mpi.h>

#include "mpi_comm.h"

namespace unshard {

/// Collective. A node is a running kernel and a mount namespace on it: what sees the same local files. MPI's own notion (ranks that can
/// share memory) is wider: two containers on one host share memory but not their disks.
[[nodiscard]] NodeMap find_nodes(MPI_Comm comm);

/// Local. The nodes of the ranks of `part`, which was split off from `whole`.
[[nodiscard]] NodeMap nodes_of_part(const NodeMap& nodes, MPI_Comm whole, MPI_Comm part);

}  // namespace unshard
