// Groups of ranks, as the MPI knows them.
#pragma once

#include <vector>

#include "mpi/mpi.h"

namespace gradred::mpi {

// By rank, the rank in MPI_COMM_WORLD; empty where some are not in it.
std::vector<int> world_ranks(Handle comm);

}  // namespace gradred::mpi
