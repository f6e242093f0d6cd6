// MPI types and operations with which the MPI carries out a reduction.
#pragma once

#include <optional>

#include "base/types.h"
#include "mpi/mpi.h"

namespace gradred {

struct MpiHandles {
  mpi::Handle type, op;
};

// The operation that the MPI must use: averages and scaled sums are sums.
inline Op combined(Op op) { return op == Op::kAvg || op == Op::kPremul ? Op::kSum : op; }

// Whether the operations of MPIs give the results that gradred promises.
bool mpi_computes_alike(Op op, DType dtype);
// The MPI's own handles; nullopt if it lacks the type, or the operation on the type, or computes
// something else.
std::optional<MpiHandles> mpi_handles(Op op, DType dtype);
// Handles for every pair: with an MPI_Op of gradred where mpi_handles() has none.
MpiHandles mpi_or_own_handles(Op op, DType dtype);

}  // namespace gradred
