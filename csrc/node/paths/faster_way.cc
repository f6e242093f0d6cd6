#include "node/paths/faster_way.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace gradred {
namespace {
// Calls by one plan in a row: the first ones of each plan, and those of a later trial.
constexpr unsigned kBegin = 2, kTrial = 8;
// From which call in a row on a time counts. Before, the caches are as another plan has left them:
// where results had bypassed them, plans that read took up to twice as long at first.
constexpr unsigned kSettled = 6;
// A trial ends early if, from this call in a row on, one takes so much longer than with the fastest
// plan.
constexpr unsigned kHopeful = 4;
constexpr double kMuch = 1.15;
// Longer data do not stay in caches, so the first calls say enough.
constexpr std::size_t kUncached = std::size_t{32} << 20;
constexpr unsigned kAgain = 512;  // calls between trials
// Powers of two of calls before that after which there are trials, too: caches and pages of the
// first calls are seldom those of later ones.
constexpr unsigned kFirstAgain = 64;
// If the fastest plan takes so much longer in so many calls in a row, the kernel may have moved the
// ranks: every plan is tried again at once, unless that was done few calls ago.
constexpr double kSlower = 1.25;
constexpr unsigned kSlowCalls = 16, kFewCalls = 128;

constexpr std::size_t at(Way way) { return static_cast<std::size_t>(way); }

bool is_early_trial(unsigned turn) {
  return turn >= kFirstAgain && turn < kAgain && std::has_single_bit(turn);
}

// The number of plans for such calls. Of those that read peers' memory: only an allreduce writes
// results for peers.
unsigned ways_for(const FasterWay::Calls& calls) {
  const unsigned reading = calls.kind == Kind::kAllreduce ? 2 : 1;
  return (calls.reads ? 2 + reading : 2) + (calls.in_groups ? 1 : 0);
}

// They are numbered without gaps: the one in groups is the last one.
Way numbered(unsigned number, const FasterWay::Calls& calls) {
  const bool last = calls.in_groups && number + 1 == ways_for(calls);
  return last ? Way::kChunksInGroups : static_cast<Way>(number);
}
unsigned number_of(std::size_t way, const FasterWay::Calls& calls) {
  return way == at(Way::kChunksInGroups) ? ways_for(calls) - 1 : static_cast<unsigned>(way);
}
}  // namespace

FasterWay::Times& FasterWay::of(const Calls& calls) {
  const auto power = static_cast<std::size_t>(std::bit_width(calls.bytes));
  const std::size_t index = std::clamp(power, kLeastPower, kLeastPower + kPowers - 1) - kLeastPower;
  const std::size_t rest = 4 * std::size_t{calls.in_groups} + 2 * std::size_t{calls.in_place} +
                           std::size_t{calls.mapped};
  return times_[static_cast<std::size_t>(calls.kind) % times_.size()][rest][index];
}

// If this rank reads lines of a peer and does not flush them, they stay in its cache, and the
// peer's program pays when it next writes them. Such a plan must be faster by a margin.
std::size_t FasterWay::Times::fastest(bool mapped) const {
  constexpr double kHandicap = 1.1;
  std::size_t found = 0;
  double least = ns[0];
  for (std::size_t way = 1; way < ns.size(); ++way) {
    const bool leaves_lines = way == at(Way::kReading) || (way == at(Way::kReadingPast) && !mapped);
    const double counts = leaves_lines ? kHandicap * ns[way] : ns[way];
    if (ns[way] == 0 || counts >= least) continue;
    found = way;
    least = counts;
  }
  return found;
}

// Called with each time of the fastest plan between trials.
bool FasterWay::Times::has_slowed(double now) {
  if (usual == 0) usual = now;
  slow = now > kSlower * usual ? slow + 1 : 0;
  if (slow == 0) usual += 0.1 * (now - usual);
  return slow >= kSlowCalls && operations >= kFewCalls;
}

// From operation `first` on, each plan is tried.
void FasterWay::Times::begin_anew(unsigned first) {
  operations = first;
  anew = true;
  usual = 0;
  slow = 0;
}

// Tries a plan unless it is the fastest one, or took more than `far` times as long.
void FasterWay::Times::begin_trial(Way way, std::size_t fastest, double far) {
  if (at(way) == fastest || ns[at(way)] > far * ns[fastest]) return;
  trial = way;
  left = kTrial;
}

// Begins with a few calls of each plan, then tries each for longer. The first calls of all may
// touch memory for the first time, so even what took long is tried. Retries the slower plans now
// and then, since ranks move from core to core; plans that were much slower only rarely.
Way FasterWay::choose(const Calls& calls) {
  constexpr unsigned kSeldom = 8;
  constexpr double kFar = 1.5, kAny = 1e9;
  const unsigned ways = ways_for(calls);
  Times& times = of(calls);
  const unsigned turn = times.operations++;
  if (turn < ways * kBegin) return numbered(turn / kBegin, calls);
  const std::size_t fastest = times.fastest(calls.mapped);
  const unsigned early = turn - ways * kBegin;
  const bool caches = times.anew || calls.bytes < kUncached;
  if (caches && early < ways * kTrial && early % kTrial == 0) {
    times.begin_trial(numbered(early / kTrial, calls), fastest, kAny);
  } else if (turn % kAgain == 0 || (caches && is_early_trial(turn))) {
    const unsigned trial = turn < kAgain ? std::bit_width(turn / kFirstAgain) : turn / kAgain;
    const unsigned next = (number_of(fastest, calls) + 1 + trial % (ways - 1)) % ways;
    times.begin_trial(numbered(next, calls), fastest, trial / ways % kSeldom == 0 ? kAny : kFar);
  }
  if (times.left == 0) return static_cast<Way>(fastest);
  --times.left;
  return times.trial;
}

// A call that took longer may have waited for a late rank. So longer times count for less, and a
// time counts as at most kMost times the known one.
void FasterWay::took(const Calls& calls, Way way, std::uint64_t ns) {
  constexpr double kLonger = 0.1, kShorter = 0.5;  // weights of the new time
  constexpr double kMost = 3;
  const auto bytes = static_cast<double>(calls.bytes);
  const auto of_power = static_cast<double>(std::bit_floor(calls.bytes)) / bytes;
  Times& times = of(calls);
  times.in_a_row = times.last == way ? times.in_a_row + 1 : 1;
  times.last = way;
  double& known = times.ns[at(way)];
  const double now = static_cast<double>(ns) * of_power;
  if (times.in_a_row >= kHopeful && now > kMuch * times.ns[times.fastest(calls.mapped)]) {
    times.left = 0;
  }
  if (known == 0 || times.operations <= times.ns.size() * kBegin) {
    known = known == 0 ? now : std::min(known, now);  // memory may be touched for the first time
  } else if (times.in_a_row >= kSettled) {
    if (!std::exchange(times.settled[at(way)], true)) known = now;
    known +=
        now > known ? kLonger * (std::min(now, kMost * known) - known) : kShorter * (now - known);
    const bool is_usual = times.left == 0 && at(way) == times.fastest(calls.mapped);
    if (is_usual && times.has_slowed(now)) times.begin_anew(ways_for(calls) * kBegin);
  }
}

}  // namespace gradred
