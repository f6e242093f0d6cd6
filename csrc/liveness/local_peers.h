// The processes of this host that this process has met, and what each published when it left.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "liveness/process.h"
#include "liveness/status_page.h"

namespace gradred {

using LocalPeers = std::vector<std::pair<int, ProcessId>>;  // peers on this host, by rank

// Returns whether a process that introduced itself runs on this host. The status file is the proof,
// since names and process numbers may be the same in other containers and on other machines. Once
// true, the answer stays true.
//
// The first call maps the status page of the process, whose last content remains readable after the
// process has ended. Never throws if the page cannot be mapped; then only the end of the process is
// noticed.
bool meet(const ProcessId& process);
// The same for a process of this job, which reaches MPI_Finalize together with this one.
bool meet_job_peer(const ProcessId& process);
// The met processes of this job whose status pages can be read.
std::vector<ProcessId> job_peers();
std::vector<ProcessId> met_peers();  // all met processes
// What a process publishes that it waits for. Returns nothing if it does not wait or its page
// cannot be read.
std::optional<WaitRecord> waits_in(const ProcessId& process);
// What a process published when it left. Returns nullptr if it has not left or its page cannot be
// read.
const ShutdownRecord* shutdown_record_of(const ProcessId& process);
Leaving leaving(const ProcessId& process);
// "process 17, sleeping", and whether only other threads than its main thread go on.
std::string doing_text(const ProcessId& process);

// Processes of this host by rank in MPI_COMM_WORLD, as learned from communicators and status files.
void remember_process(int world_rank, const ProcessId& process);
LocalPeers known_processes(std::span<const int> world_ranks);

}  // namespace gradred
