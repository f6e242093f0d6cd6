// Plan "mpi": the MPI's own collective calls, for comparison and for calls that no other plan can
// serve.
#pragma once

#include "calls/family.h"

namespace gradred {

const Family& mpi_family();

}  // namespace gradred
