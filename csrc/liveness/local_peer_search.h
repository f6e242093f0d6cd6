// Ranks of this job on this host that this process has met in no call, and must know nevertheless.
//
// One that leaves before its first call has told nobody of itself; it is found by its status file.
// Who waits long in a call looks for such ranks, and so does who comes to MPI_Finalize.
#pragma once

#include <cstddef>

namespace gradred {

// How many of the job run on this host; 0: as many as the job has.
void expect_ranks_on_host(std::size_t ranks);
// Lets this process know them; costs nothing where it knows all. A job is told from others by its
// launcher, so none is found where there is none above the ranks. Whether there is nobody left to
// look for.
bool meet_local_peers();
// Looks again until all are known or two seconds are over, once in the life of a process: some may
// still be about to begin, and some never do.
void await_local_peers();

}  // namespace gradred
