// The processes of this host that this one has met, and the last word of each.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "liveness/process.h"
#include "liveness/status_page.h"

namespace gradred {

using LocalPeers = std::vector<std::pair<int, ProcessId>>;  // peers on this host, by rank

// Whether a process that has told of itself is one of this host, by proof and not by what it said:
// names and numbers may be the same in other containers and machines. Once true it remains so.
//
// Maps the status page of such a process, once: what it says last outlives it. Never throws for a
// page that cannot be mapped: then only the end of the process is seen.
bool meet(const ProcessId& process);
// The same of a process of this program, which comes to MPI_Finalize together with this one.
bool meet_job_peer(const ProcessId& process);
// Those of them whose pages can be read.
std::vector<ProcessId> job_peers();
std::vector<ProcessId> met_peers();  // these, and others
// What a process shows that it waits for; nothing while it does not, and where its page cannot be
// read.
std::optional<WaitRecord> waits_in(const ProcessId& process);
// What a process has said at its end; null while it goes on, and where its page cannot be read.
const ShutdownRecord* shutdown_record_of(const ProcessId& process);
Leaving leaving(const ProcessId& process);

// Processes of this host by their ranks in MPI_COMM_WORLD, of which a communicator or a status file
// has told.
void remember_process(int world_rank, const ProcessId& process);
LocalPeers known_processes(std::span<const int> world_ranks);

}  // namespace gradred
