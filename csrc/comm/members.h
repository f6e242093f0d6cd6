// The ranks of a communicator on this host, as far as this process has met theirs before: what they
// show that they wait for.
#pragma once

#include <string_view>

#include "comm/lost.h"
#include "mpi/mpi.h"

namespace gradred {

// Peers, by their ranks in `comm`. Local.
Neighbours known_members(mpi::Handle comm);
// Whether no lower rank shows that it waits in `what`: the lowest is the one to report it.
bool is_first_to_wait(const Neighbours& members, int rank, std::string_view what);

}  // namespace gradred
