// What the hosts of a communicator cost: how long messages, reductions and the MPI's own allreduce
// take. This is measured in the set-up of the first communicator over several hosts, and later read
// from a file.
#pragma once

#include <functional>
#include <string>

#include "calls/call.h"
#include "comm/set_up/set_up_calls.h"
#include "plan/figures.h"
#include "plan/plan.h"
#include "transport/mpi_transport.h"

namespace gradred {

// What a measurement compares, and the functions of the communicator that it calls. Both block.
struct Trials {
  PlanSources sources;                 // of the plans that are compared
  std::function<void()> meet_on_host;  // for the ranks of each host; empty: they share no memory
  std::function<void(const Call& call, const Plan& plan)> run;
};

// Collective, with the same result on all ranks: the figures in rank 0's file in `folder`. If there
// are none, measures for a few tenths of a second, and rank 0 writes that file. No operation may be
// in flight on the transport.
Figures find_figures(SetUpCalls& calls, MpiTransport& transport, const Place& place,
                     const std::string& folder, const Trials& trials);

}  // namespace gradred
