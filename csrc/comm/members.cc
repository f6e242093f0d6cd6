#include "comm/members.h"

#include <algorithm>
#include <string>
#include <vector>

#include "comm/registry.h"
#include "comm/watch.h"
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

std::vector<int> waiting_in(const Neighbours& members, std::string_view what) {
  std::vector<int> waiting;
  for (const auto& [rank, process] : members) {
    if (waits_for(process).find(what) != std::string::npos) waiting.push_back(rank);
  }
  return waiting;
}

std::string FirstCall::text(std::uint64_t waited) const {
  const Neighbours members = known_members(comm);
  const RankNames names(Registry::get().world_ranks(comm));
  std::string missing;
  for (const auto& [other, process] : members) {
    const std::string theirs = waits_for(process);
    if (theirs.find(what) != std::string::npos) continue;
    const std::string state =
        theirs.empty() ? state_text(process) : "waits in another call of gradred";
    missing += (missing.empty() ? "; missing: " : ", ") +
               names.of(other, process_text(process) + ", " + state);
  }
  const std::size_t unknown = static_cast<std::size_t>(size) - 1 - members.size();
  if (unknown != 0) missing += "; ranks of whom nothing is known: " + std::to_string(unknown);
  if (missing.empty()) missing = "; all wait in such a call: perhaps on different communicators";
  return names.of(rank) + " has waited " + seconds_text(waited) + " " + what + missing;
}

}  // namespace gradred
