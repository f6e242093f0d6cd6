// The processes of this host that this one has met, and the last word of each.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "node/process.h"

namespace gradred {

// Whether a process that has told of itself is one of this host, by proof and not by what it said:
// names and numbers may be the same in other containers and machines. Once true it remains so.
//
// Maps the status page of such a process, once: what it says last outlives it. Never throws for a
// page that cannot be mapped: then only the end of the process is seen.
bool meet(const ProcessId& process);
// The same of a process of this program, which comes to MPI_Finalize together with this one.
bool meet_companion(const ProcessId& process);
// Those of them whose pages can be read.
std::vector<ProcessId> companions();
// What a process shows that it waits for; empty while it does not, and where its page cannot be
// read.
std::string waits_for(const ProcessId& process);
// What a process has said at its end; null while it goes on, and where its page cannot be read.
const Farewell* farewell_of(const ProcessId& process);
Leaving leaving(const ProcessId& process);

}  // namespace gradred
