#include "node/paths/stores.h"

#include <algorithm>
#include <bit>

#include "node/memory/copy.h"

namespace gradred {

std::size_t FasterStores::index_of(std::size_t bytes) {
  constexpr auto kLeastPower = static_cast<std::size_t>(std::bit_width(kLeast));
  const auto power = static_cast<std::size_t>(std::bit_width(bytes));
  return std::clamp(power, kLeastPower, kLeastPower + kPowers - 1) - kLeastPower;
}

// A trial is four operations with the other kind of stores, then four with the usual kind.
// Operations alternate between two slots, so the first two of each four find caches in the state
// that the previous kind left, and are not timed. Between trials the usual kind is used; timing one
// operation now and then shows whether the ranks have moved to other cores.
std::uint8_t FasterStores::decide(std::size_t bytes) {
  constexpr unsigned kGlance = 64;
  const std::size_t index = index_of(bytes);
  Times& times = times_[index];
  const unsigned phase = ++times.operations - times.trial;
  if (phase == kTrial + 1) times.end_trial();
  const bool usual = times.ns[1] < times.ns[0];
  if (phase == 0) times.tries_past = times.ns[0] == 0 || !usual;
  const bool in_trial = phase < kTrial;
  times.measures = in_trial ? phase % 4 >= 2 : times.operations % kGlance == 0;
  const bool past = in_trial ? times.tries_past == (phase < 4) : usual;
  unsigned bits = 1U << index;
  for (std::size_t longer = index + 1; longer < kPowers && times_[longer].operations == 0;
       ++longer) {
    bits |= 1U << longer;
  }
  return static_cast<std::uint8_t>(past ? past_ | bits : past_ & ~bits);
}

// The clearer the difference, the more operations until the next trial.
void FasterStores::Times::end_trial() {
  constexpr double kClear = 1.3;
  constexpr unsigned kMost = 4096;
  const auto [least, most] = std::minmax(ns[0], ns[1]);
  between = most > kClear * least ? std::min(2 * between, kMost) : kBetween;
  trial = operations + between;
}

void FasterStores::took(std::size_t bytes, std::uint64_t ns) {
  constexpr double kMoved = 1.5;
  Times& times = times_[index_of(bytes)];
  double& known = times.ns[std::size_t{past(bytes)}];
  const double now = static_cast<double>(ns) / static_cast<double>(bytes);
  const unsigned phase = times.operations - 1 - times.trial;  // decide() has counted one more
  if (phase < kTrial) {
    known = phase % 4 == 2 ? now : std::min(known, now);
  } else if (now > kMoved * known || known > kMoved * now) {
    times.between = kBetween;
    times.trial = times.operations + 1;
  } else {
    known += (now - known) / 4;
  }
}

void PeerStores::give(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (!past_) return copy_out(target, source, bytes);
  ++written_past_;
  copy_streaming(target, source, bytes);
}

}  // namespace gradred
