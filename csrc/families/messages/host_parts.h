// Which part of the data each rank of a host carries between the hosts in plan "hierarchical".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "calls/call.h"
#include "plan/plan.h"
#include "schedule/partition.h"

namespace gradred {

// The parts of the vector that the ranks of a host get, in the form that a NodeCall takes.
struct HostParts {
  // For each piece: where the part of each rank begins, and where the last part ends.
  std::vector<std::vector<std::size_t>> begins{};
  std::vector<std::uint32_t> order{};  // of blocks; empty for vectors
};

// `pieces`: of the vector; the schedule between hosts cuts each into `chunks`. In an allgather that
// the leader leads (`led`), a rank's part is its own block.
HostParts host_parts(const Call& call, const Plan& plan, int rank, int size, Partition pieces,
                     std::size_t chunks, bool led);

// The index of rank `other` among the ranks on the host of `rank`; -1: it is on another host.
int place_on_host(const Topology& topology, int rank, int other);

}  // namespace gradred
