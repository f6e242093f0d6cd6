#include "node/stores.h"

#include <algorithm>
#include <bit>

namespace gradred {
namespace {

constexpr unsigned kTrials = 8;  // operations that try both, two of each in turn: slots alternate
constexpr unsigned kBetween = 128;

}  // namespace

std::size_t FasterStores::index_of(std::size_t bytes) {
  constexpr auto kLeastPower = static_cast<std::size_t>(std::bit_width(kLeast));
  const auto power = static_cast<std::size_t>(std::bit_width(bytes));
  return std::clamp(power, kLeastPower, kLeastPower + kPowers - 1) - kLeastPower;
}

// Both again now and then, since ranks move from core to core.
std::uint8_t FasterStores::decide(std::size_t bytes) {
  if (bytes < kLeast) return past_;
  const std::size_t index = index_of(bytes);
  Times& times = times_[index];
  const unsigned next = ++times.operations, since = next % kBetween;
  const auto bit = static_cast<std::uint8_t>(1U << index);
  bool past = next / 2 % 2 != 0;
  if (next >= kTrials) past = (times.ns[1] < times.ns[0]) != (since < 2);
  const bool measured = next < kTrials || since < 4;
  measures_ = static_cast<std::uint8_t>(measured ? measures_ | bit : measures_ & ~bit);
  return static_cast<std::uint8_t>(past ? past_ | bit : past_ & ~bit);
}

void FasterStores::took(std::size_t bytes, std::uint64_t ns) {
  Times& times = times_[index_of(bytes)];
  double& known = times.ns[std::size_t{past(bytes)}];
  const double now = static_cast<double>(ns) / static_cast<double>(bytes);
  if (known == 0 || times.operations <= kTrials) {  // memory may be touched for the first time
    known = known == 0 ? now : std::min(known, now);
  } else {
    known += (now - known) / 2;
  }
}

}  // namespace gradred
