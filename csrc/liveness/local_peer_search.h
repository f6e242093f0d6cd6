// Finds ranks of this job on this host with which this process has shared no call.
//
// A rank that leaves before its first call has sent nothing about itself; its status file reveals
// it. A process searches when it has waited long in a call and when it reaches MPI_Finalize.
#pragma once

#include <cstddef>

namespace gradred {

// Sets how many ranks of the job run on this host; 0: as many as the job has.
void expect_ranks_on_host(std::size_t ranks);
// Finds such ranks and meets them (local_peers.h). Costs nothing if all are known already. Ranks
// belong to the same job if they have the same launcher, so none are found without a launcher
// process above the ranks. Returns whether there is nothing left to search for.
bool meet_local_peers();
// Repeats the search until all are known or two seconds have passed. Works only once per process.
// Some ranks may still be starting, and some may never start.
void await_local_peers();

}  // namespace gradred
