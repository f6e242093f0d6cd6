// Which peers have ended. The operating system reports it for processes of this host whose numbers
// are known, the launcher for all ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rank_names.h"
#include "liveness/local_peers.h"
#include "mpi/mpi.h"

namespace gradred {

// Returns a text for the first process that has ended: "rank 1 (process 17) has ended".
std::optional<std::string> ended_among(std::span<const std::pair<int, ProcessId>> local_peers,
                                       const RankNames& names);
// Returns a text for the first process that published at least a second ago that it leaves: "rank 1
// (process 17) has left the program". By then, operations in which it took part are complete
// everywhere.
std::optional<std::string> left_among(const LocalPeers& local_peers, const RankNames& names);

// The same for the first one that had begun fewer than `begun` operations of those counted under
// `key`.
std::optional<std::string> left_before(const LocalPeers& local_peers, const RankNames& names,
                                       std::uint64_t key, std::uint64_t begun);

// The known peers on this host, by rank in `comm`. Local, as the next two functions.
LocalPeers known_local_peers(mpi::Handle comm);
// Returns a text for a rank of `comm` that has ended, as far as the system and the launcher report.
// `names` are those of `comm`.
std::optional<std::string> lost_rank(mpi::Handle comm, const RankNames& names);
// The same for a rank that left the program at least a second ago and takes part in nothing new.
std::optional<std::string> left_rank(mpi::Handle comm, const RankNames& names);

// Checks for lost peers every 50 ms. What a peer sent before its end may still be on its way, so a
// loss is reported only half a second after it was found.
class LostPeers {
 public:
  // `find` returns a text if a peer is lost. look() returns that text once it is time to give up.
  template <class Find>
  std::optional<std::string> look(Find&& find) {
    if (!is_time()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    std::optional<std::string> found = find();
    return found && is_missed() ? std::move(found) : std::nullopt;
  }

 private:
  bool is_time();
  bool is_missed();

  std::atomic<std::uint64_t> looked_ns_{0};
  std::mutex mutex_;
  std::uint64_t since_ns_ = 0;
};

}  // namespace gradred
