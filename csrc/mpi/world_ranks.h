// Groups of ranks, as the MPI library describes them.
#pragma once

#include <vector>

#include "mpi/mpi.h"

namespace gradred::mpi {

// Returns for each rank of `comm` its rank in MPI_COMM_WORLD, or nothing if some ranks are outside
// it.
std::vector<int> world_ranks(Handle comm);

}  // namespace gradred::mpi
