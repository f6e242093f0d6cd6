#include "node/faster_way.h"

#include <algorithm>
#include <bit>

namespace gradred {
namespace {
constexpr unsigned kFirst = 8;  // operations that try all plans in turn

constexpr std::size_t at(Way way) { return static_cast<std::size_t>(way); }
}  // namespace

FasterWay::Times& FasterWay::of(const Calls& calls) {
  const auto power = static_cast<std::size_t>(std::bit_width(calls.bytes));
  const std::size_t index = std::clamp(power, kLeastPower, kLeastPower + kPowers - 1) - kLeastPower;
  const std::size_t rest = 2 * std::size_t{calls.in_place} + std::size_t{calls.mapped};
  return times_[static_cast<std::size_t>(calls.kind) % times_.size()][rest][index];
}

// If this rank reads lines of a peer and does not flush them, they stay in its cache, and the
// peer's program pays when it next writes them. Such a plan must be faster by a margin.
std::size_t FasterWay::Times::fastest(bool mapped) const {
  constexpr double kHandicap = 1.1;
  std::size_t found = 0;
  double least = ns[0];
  for (std::size_t way = 1; way < ns.size(); ++way) {
    const bool leaves_lines = way >= at(Way::kReading) && !(mapped && way == at(Way::kReadingPast));
    const double counts = leaves_lines ? kHandicap * ns[way] : ns[way];
    if (ns[way] == 0 || counts >= least) continue;
    found = way;
    least = counts;
  }
  return found;
}

// Tries each plan, and retries the slower ones now and then, since ranks move from core to core.
// Plans that were much slower are retried rarely.
Way FasterWay::choose(const Calls& calls) {
  constexpr unsigned kAgain = 64, kSeldom = 8;
  constexpr double kFar = 1.5;
  // Of the plans that read peers' memory, kChunks aside: only an allreduce writes results for
  // peers.
  const std::size_t reading = calls.kind == Kind::kAllreduce ? 2 : 1;
  const std::size_t ways = calls.reads ? 2 + reading : 2;
  Times& times = of(calls);
  const unsigned turn = times.operations++;
  std::size_t way = times.fastest(calls.mapped);
  if (turn < kFirst) {
    way = turn % ways;
  } else if (turn % kAgain == 0) {
    const unsigned trial = turn / kAgain;
    const std::size_t other = (way + 1 + trial % (ways - 1)) % ways;
    const bool far_slower = times.ns[other] > kFar * times.ns[way];
    if (!far_slower || trial / ways % kSeldom == 0) way = other;
  }
  return static_cast<Way>(way);
}

// A call that took longer may have waited for a late rank. So longer times count for less, and a
// time counts as at most kMost times the known one.
void FasterWay::took(const Calls& calls, Way way, std::uint64_t ns) {
  constexpr double kLonger = 0.1, kShorter = 0.5;  // weights of the new time
  constexpr double kMost = 3;
  const auto bytes = static_cast<double>(calls.bytes);
  const auto of_power = static_cast<double>(std::bit_floor(calls.bytes)) / bytes;
  Times& times = of(calls);
  double& known = times.ns[static_cast<std::size_t>(way)];
  const double now = static_cast<double>(ns) * of_power;
  if (known == 0 || times.operations <= kFirst) {  // memory may be touched for the first time
    known = known == 0 ? now : std::min(known, now);
  } else {
    known +=
        now > known ? kLonger * (std::min(now, kMost * known) - known) : kShorter * (now - known);
  }
}

}  // namespace gradred
