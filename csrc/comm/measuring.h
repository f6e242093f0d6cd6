// What the hosts of a communicator cost: how long messages, reductions and the MPI's own allreduce
// take. Part of the set-up of the first communicator over several hosts, later read from a file.
#pragma once

#include <string>

#include "comm/set_up_calls.h"
#include "plan/figures.h"
#include "schedule/topology.h"
#include "transport/mpi.h"

namespace gradred {

// Collective, and the same on all ranks: rank 0's file in the folder, or a measurement of a few
// tenths of a second, which rank 0 keeps there. No operation may be in flight on the transport.
Figures find_figures(SetUpCalls& calls, MpiTransport& transport, const Topology& topology,
                     const std::string& folder);

}  // namespace gradred
