// What the hosts of a communicator cost: how long messages, reductions and the MPI's own allreduce
// take. Part of the set-up of the first communicator over several hosts, later read from a file.
#pragma once

#include <functional>
#include <string>

#include "comm/call.h"
#include "comm/set_up_calls.h"
#include "plan/figures.h"
#include "plan/plan.h"
#include "transport/mpi.h"

namespace gradred {

// What the communicator does to be measured. Both block.
struct Trials {
  std::function<void()> meet_on_host;  // the ranks of each host that share memory; empty: none do
  std::function<void(const Call& call, const Plan& plan)> run;
};

// Collective, and the same on all ranks: rank 0's file in the folder, or a measurement of a few
// tenths of a second, which rank 0 keeps there. No operation may be in flight on the transport.
Figures find_figures(SetUpCalls& calls, MpiTransport& transport, const Place& place,
                     const std::string& folder, const Trials& trials);

}  // namespace gradred
