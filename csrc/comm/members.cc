#include "comm/members.h"

#include <algorithm>
#include <string>
#include <vector>

#include "comm/registry.h"
#include "comm/watch.h"
#include "node/neighbours.h"

namespace gradred {

namespace {

std::string first_blocking(int size) {
  return "in the first call on a communicator of " + std::to_string(size) +
         " ranks, which all of them must make";
}

}  // namespace

std::string among(int size) { return " among " + std::to_string(size) + " ranks"; }

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

std::string state_of_missed(const ProcessId& process, int size) {
  const std::string theirs = waits_for(process);
  const auto says = [&](std::string_view text) { return theirs.find(text) != std::string::npos; };
  if (theirs.empty()) return state_text(process);
  if (says(first_blocking(size))) return "whose first call blocks";
  if (says(kCarriedByMpi) && says(among(size))) return "whose first call does not block";
  return "waits in another call of gradred";
}

std::string FirstCall::what() const {
  if (kind == Kind::kBlocks) return first_blocking(size);
  return "in Dup of a communicator of " + std::to_string(size) +
         " ranks, which all of them must call";
}

std::string missing_from(mpi::Handle comm, int size, std::string_view what) {
  const Neighbours members = known_members(comm);
  const RankNames names(Registry::get().world_ranks(comm));
  std::string missing;
  for (const auto& [other, process] : members) {
    if (waits_for(process).find(what) != std::string::npos) continue;
    missing += (missing.empty() ? "; missing: " : ", ") +
               names.of(other, process_text(process) + ", " + state_of_missed(process, size));
  }
  const std::size_t unknown = static_cast<std::size_t>(size) - 1 - members.size();
  if (unknown != 0) missing += "; ranks of whom nothing is known: " + std::to_string(unknown);
  return missing.empty() ? "; all wait in such a call: perhaps on different communicators"
                         : missing;
}

std::string FirstCall::text(std::uint64_t waited) const {
  const RankNames names(Registry::get().world_ranks(comm));
  return names.of(rank) + " has waited " + seconds_text(waited) + " " + what() +
         missing_from(comm, size, what());
}

}  // namespace gradred
