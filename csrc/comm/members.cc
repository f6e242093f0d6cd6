#include "comm/members.h"

#include <algorithm>
#include <string>
#include <vector>

#include "comm/registry.h"
#include "node/neighbours.h"

namespace gradred {

Neighbours known_members(mpi::Handle comm) {
  Registry& registry = Registry::get();
  const std::vector<int> world_ranks = registry.world_ranks(comm);
  Neighbours members;
  for (std::size_t rank = 0; rank < world_ranks.size(); ++rank) {
    for (const auto& [world_rank, process] : registry.known_among({&world_ranks[rank], 1})) {
      members.emplace_back(static_cast<int>(rank), process);
    }
  }
  return members;
}

bool is_first_to_wait(const Neighbours& members, int rank, std::string_view what) {
  return std::ranges::none_of(members, [&](const auto& member) {
    const auto& [other, process] = member;
    return other < rank && is_going(process) && waits_for(process).find(what) != std::string::npos;
  });
}

}  // namespace gradred
