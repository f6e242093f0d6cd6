// The processes of this host that this one has met, and the last word of each.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "node/process.h"

namespace gradred {

// Maps the status page of a process, once: what it says last outlives it. Never throws for a page
// that cannot be read: of such a process only its end is seen.
void meet(const ProcessId& process);
// The same of a process of this program, which comes to MPI_Finalize together with this one.
void meet_companion(const ProcessId& process);
// Those of them whose pages can be read.
std::vector<ProcessId> companions();
// What a process shows that it waits for; empty while it does not, and where its page cannot be
// read.
std::string waits_for(const ProcessId& process);
// What a process has said at its end; null while it goes on, and where its page cannot be read.
const Farewell* farewell_of(const ProcessId& process);
Leaving leaving(const ProcessId& process);

}  // namespace gradred
