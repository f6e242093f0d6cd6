#include "liveness/lost_peers.h"

#include "base/clock.h"
#include "liveness/failure_board.h"
#include "mpi/world_ranks.h"

namespace gradred {

std::optional<std::string> ended_among(std::span<const std::pair<int, ProcessId>> local_peers,
                                       const RankNames& names) {
  for (const auto& [rank, process] : local_peers) {
    if (is_alive(process)) continue;
    return names.of(rank, process_text(process)) + " has ended";
  }
  return std::nullopt;
}

namespace {

template <class Counts>
std::optional<std::string> first_left(const LocalPeers& local_peers, const RankNames& names,
                                      Counts&& counts) {
  constexpr std::uint64_t kMomentNs = 1'000'000'000;
  for (const auto& [rank, process] : local_peers) {
    const ShutdownRecord* said = shutdown_record_of(process);
    if (said == nullptr || now_ns() - said->at_ns < kMomentNs || !counts(*said)) continue;
    return names.of(rank, process_text(process)) + " " + said->reason;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> left_among(const LocalPeers& local_peers, const RankNames& names) {
  return first_left(local_peers, names, [](const ShutdownRecord&) { return true; });
}

std::optional<std::string> left_before(const LocalPeers& local_peers, const RankNames& names,
                                       std::uint64_t key, std::uint64_t begun) {
  return first_left(local_peers, names, [&](const ShutdownRecord& said) {
    for (std::uint32_t i = 0; i < said.known; ++i) {
      if (said.begun[i].communicator == key) return said.begun[i].operations < begun;
    }
    return said.known < ShutdownRecord::kMost;  // a full list may lack the communicator
  });
}

LocalPeers known_local_peers(mpi::Handle comm) {
  const std::vector<int> world_ranks = mpi::world_ranks(comm);
  LocalPeers peers;
  for (std::size_t rank = 0; rank < world_ranks.size(); ++rank) {
    for (const auto& [world_rank, process] : known_processes({&world_ranks[rank], 1})) {
      peers.emplace_back(static_cast<int>(rank), process);
    }
  }
  return peers;
}

std::optional<std::string> lost_rank(mpi::Handle comm, const RankNames& names) {
  if (auto ended = ended_among(known_local_peers(comm), names)) return ended;
  if (!any_rank_failed()) return std::nullopt;
  const auto failure = failure_among(names.world_ranks());
  if (!failure) return std::nullopt;
  const auto& [rank, said] = *failure;
  return names.of(rank) + " " + said;
}

std::optional<std::string> left_rank(mpi::Handle comm, const RankNames& names) {
  return left_among(known_local_peers(comm), names);
}

bool LostPeers::is_time() {
  constexpr std::uint64_t kEveryNs = 50'000'000;
  const std::uint64_t now = now_ns();
  std::uint64_t looked = looked_ns_.load(std::memory_order_relaxed);
  if (now - looked < kEveryNs) return false;
  const bool first = looked == 0;  // most waits are over before the next one
  return looked_ns_.compare_exchange_strong(looked, now, std::memory_order_relaxed) && !first;
}

bool LostPeers::is_missed() {
  constexpr std::uint64_t kMomentNs = 500'000'000;
  if (since_ns_ == 0) since_ns_ = looked_ns_;
  return looked_ns_ - since_ns_ >= kMomentNs;
}

}  // namespace gradred
