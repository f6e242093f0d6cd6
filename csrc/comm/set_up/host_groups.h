// The node groups of a communicator over several hosts: one for the ranks of each host.
#pragma once

#include <memory>
#include <string>

#include "base/rank_names.h"
#include "comm/set_up/set_up_calls.h"
#include "node/group/group.h"
#include "schedule/topology.h"
#include "transport/mpi_transport.h"

namespace gradred {

// Collective. Either the ranks of each host share memory, which they have tested, or no host does
// and all ranks get the same `why_not`. Also returns nullptr on a rank that is alone on its host.
std::unique_ptr<NodeGroup> make_host_group(SetUpCalls& calls, MpiTransport& transport,
                                           const Topology& topology, const RankNames& names,
                                           const NodeOptions& options, std::string& why_not);

}  // namespace gradred
