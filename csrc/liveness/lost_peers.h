// Peers that have ended, as far as anybody knows: the system, for those of this host that have told
// their process numbers, and the launcher, for all.
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

// "rank 1 (process 17) has ended", of the first that has.
std::optional<std::string> ended_among(std::span<const std::pair<int, ProcessId>> local_peers,
                                       const RankNames& names);
// "rank 1 (process 17) has left the program", of the first that has said so a second ago: what it
// did before is done everywhere.
std::optional<std::string> left_among(const LocalPeers& local_peers, const RankNames& names);

// The same, of the first that had begun fewer than `begun` of the operations counted under `key`.
std::optional<std::string> left_before(const LocalPeers& local_peers, const RankNames& names,
                                       std::uint64_t key, std::uint64_t begun);

// Peers on this host, by their ranks in `comm`, as far as this process has met theirs before.
// Local, as the next two.
LocalPeers known_local_peers(mpi::Handle comm);
// A rank of the communicator, which has these names, that has ended, as far as any of its ranks'
// communicators and the launcher have told, and how.
std::optional<std::string> lost_rank(mpi::Handle comm, const RankNames& names);
// The same of a rank that has left the program a while ago and will take part in nothing new.
std::optional<std::string> left_rank(mpi::Handle comm, const RankNames& names);

// A look every 50 ms. What a peer sent before its end may still be on its way, so it is missed only
// half a second later.
class LostPeers {
 public:
  // `find` says who is lost, if anybody; the text of it comes back once it is time to give up.
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
