#include "schedule/topology.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace gradred {

Topology Topology::of(std::vector<int> host_of) {
  Topology topology;
  topology.host_of = std::move(host_of);
  const auto size = topology.host_of.size();
  topology.hosts = size == 0 ? 0 : 1 + *std::ranges::max_element(topology.host_of);
  if (topology.hosts == 0 || size % static_cast<std::size_t>(topology.hosts) != 0) return topology;
  const std::size_t local = size / static_cast<std::size_t>(topology.hosts);
  for (std::size_t rank = 0; rank < size; ++rank) {
    if (topology.host_of[rank] != static_cast<int>(rank / local)) return topology;
  }
  topology.local = static_cast<int>(local);
  return topology;
}

}  // namespace gradred
