// What each rank of a host carries between the hosts in plan "hierarchical".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/call.h"
#include "plan/plan.h"
#include "schedule/partition.h"

namespace gradred {

// As a NodeCall takes it.
struct HostParts {
  std::vector<std::vector<std::size_t>> begins{};  // of each piece: the ranks' parts, and the end
  std::vector<std::uint32_t> order{};              // of blocks; else empty
};

// `pieces` of the vector, each of which the schedule that crosses cuts into `chunks`. The blocks of
// a led allgather are the ranks' own.
HostParts host_parts(const Call& call, const Plan& plan, int rank, int size, Partition pieces,
                     std::size_t chunks, bool led);

// The place of a rank among those of this rank's host; -1: it is on another one.
int place_on_host(const Topology& topology, int rank, int other);

}  // namespace gradred
