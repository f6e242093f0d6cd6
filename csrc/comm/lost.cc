#include "comm/lost.h"

#include "base/clock.h"
#include "node/neighbours.h"

namespace gradred {

std::optional<std::string> ended_among(std::span<const std::pair<int, ProcessId>> neighbours,
                                       const RankNames& names) {
  for (const auto& [rank, process] : neighbours) {
    if (is_alive(process)) continue;
    return names.of(rank, process_text(process)) + " has ended";
  }
  return std::nullopt;
}

namespace {

template <class Counts>
std::optional<std::string> first_left(const Neighbours& neighbours, const RankNames& names,
                                      Counts&& counts) {
  constexpr std::uint64_t kMomentNs = 1'000'000'000;
  for (const auto& [rank, process] : neighbours) {
    const Farewell* said = farewell_of(process);
    if (said == nullptr || now_ns() - said->at_ns < kMomentNs || !counts(*said)) continue;
    return names.of(rank, process_text(process)) + " " + said->reason;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> left_among(const Neighbours& neighbours, const RankNames& names) {
  return first_left(neighbours, names, [](const Farewell&) { return true; });
}

std::optional<std::string> left_before(const Neighbours& neighbours, const RankNames& names,
                                       std::uint64_t key, std::uint64_t begun) {
  return first_left(neighbours, names, [&](const Farewell& said) {
    for (std::uint32_t i = 0; i < said.known; ++i) {
      if (said.begun[i].communicator == key) return said.begun[i].operations < begun;
    }
    return said.known < Farewell::kMost;  // else it may have been too much to tell
  });
}

bool LostPeers::is_time() {
  constexpr std::uint64_t kEveryNs = 50'000'000;
  const std::uint64_t now = now_ns();
  if (now - looked_ns_ < kEveryNs) return false;
  looked_ns_ = now;
  return true;
}

bool LostPeers::is_missed() {
  constexpr std::uint64_t kMomentNs = 500'000'000;
  if (since_ns_ == 0) since_ns_ = looked_ns_;
  return looked_ns_ - since_ns_ >= kMomentNs;
}

}  // namespace gradred
