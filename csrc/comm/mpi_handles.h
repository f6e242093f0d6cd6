// Types and operations by which the MPI carries out a reduction.
#pragma once

#include <optional>

#include "base/types.h"
#include "mpi/mpi.h"

namespace gradred {

struct MpiHandles {
  mpi::Handle type, op;
};

// What the MPI must combine: averages and scaled sums are sums.
inline Op combined(Op op) { return op == Op::kAvg || op == Op::kPremul ? Op::kSum : op; }

// The MPI's own; nothing where it lacks the type, or the operation on the type.
std::optional<MpiHandles> mpi_handles(Op op, DType dtype);
// Whether the MPI's results are those that gradred promises, so that it may be chosen unasked.
bool mpi_computes_alike(Op op, DType dtype);
// For every pair: with an MPI_Op of gradred's where the MPI has none.
MpiHandles mpi_or_own_handles(Op op, DType dtype);

}  // namespace gradred
