// Peers that have ended, as far as anybody knows: the system, for those of this host that have told
// their process numbers, and the launcher, for all.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/rank_names.h"
#include "node/process.h"

namespace gradred {

using Neighbours = std::vector<std::pair<int, ProcessId>>;  // peers on this host

// "rank 1 (process 17) has ended", of the first that has.
std::optional<std::string> ended_among(std::span<const std::pair<int, ProcessId>> neighbours,
                                       const RankNames& names);
// "rank 1 (process 17) has left the program", of the first that has said so a second ago: what it
// did before is done everywhere.
std::optional<std::string> left_among(const Neighbours& neighbours, const RankNames& names);

// The same, of the first that had begun fewer than `begun` of the operations counted under `key`.
std::optional<std::string> left_before(const Neighbours& neighbours, const RankNames& names,
                                       std::uint64_t key, std::uint64_t begun);

// A look every 50 ms. What a peer sent before its end may still be on its way, so it is missed only
// half a second later.
class LostPeers {
 public:
  // `find` says who is lost, if anybody; the text of it comes back once it is time to give up.
  template <class Find>
  std::optional<std::string> look(Find&& find) {
    const std::lock_guard lock(mutex_);
    if (!is_time()) return std::nullopt;
    std::optional<std::string> found = find();
    return found && is_missed() ? std::move(found) : std::nullopt;
  }

 private:
  bool is_time();
  bool is_missed();

  std::mutex mutex_;
  std::uint64_t looked_ns_ = 0, since_ns_ = 0;
};

}  // namespace gradred
