#include "node/memory/wait.h"

#include <algorithm>

#include "base/clock.h"
#include "base/core.h"
#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
constexpr std::uint64_t kPollEvery = 5 * kMicrosecond;
// A waiter spins. It then yields, since the peer may need this core, and after
// kYieldFor it sleeps, since the peer is busy with other work.
constexpr std::uint64_t kYieldFor = 5 * kMillisecond;
constexpr std::uint64_t kShortNap = 1 * kMillisecond;
constexpr std::uint64_t kLongNap = 16 * kMillisecond;
constexpr std::uint64_t kCheckPeersEvery = 50 * kMillisecond;
constexpr int kLooksPerClock = 16;

}  // namespace

// If the peer comes in a yield, the kernel has both on one core, as it does now and then: the next
// wait yields sooner. If the yield takes long, another program has had the core, for four
// milliseconds with many kernels: for a while no wait yields.
void YieldTimes::learn(std::uint64_t took, bool reached, std::uint64_t now) {
  constexpr std::uint64_t kSwitch = 1500, kOfPeer = 100 * kMicrosecond;
  constexpr std::uint64_t kOfStranger = 500 * kMicrosecond;
  constexpr std::uint64_t kRecently = 100 * kMillisecond, kAWhile = 1000 * kMillisecond;
  if (reached && took > kSwitch && took < kOfPeer) {
    met_peer_ = now;
    spin_ = std::max(spin_ / 2, kMicrosecond);
  } else if (took > kOfStranger && now - met_peer_ > kRecently) {
    spin_ = kSpinFor;
    again_ = now + kAWhile;
  }
}

// Returns true if the counter was reached, false if it is time to sleep.
bool Waiter::spin_and_yield(const Awaited& awaited) {
  if (!spins_) {
    for (unsigned i = 0; i < yields_; ++i) {
      yield_core();
      if (awaited.reached()) return true;
    }
    if (yields_ > 0) look_around(awaited);
    return awaited.reached();
  }
  const std::uint64_t start = now_ns();
  for (std::uint64_t now = start, polled = start; now - start < kYieldFor; now = now_ns()) {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (awaited.reached()) return true;
      relax();
    }
    if (now - polled >= kPollEvery) {
      look_around(awaited);
      polled = now;
    }
    if (yield_times_.yields(now - start, now)) {
      yield_core();
      const std::uint64_t after = now_ns();
      yield_times_.learn(after - now, awaited.reached(), after);
    }
  }
  return false;
}

void Waiter::wait_long(const Awaited& awaited) {
  const std::uint64_t begin = now_ns();
  peers_checked_ns_ = begin;
  if (!spin_and_yield(awaited)) sleep_until(awaited);
  if (charged_ == nullptr) return;
  const std::uint64_t sum = charged_->load(std::memory_order_relaxed) + now_ns() - begin;
  charged_->store(sum, std::memory_order_relaxed);
}

void Waiter::sleep_until(const Awaited& awaited) {
  std::uint64_t limit = kShortNap;
  while (!awaited.reached()) {
    Sleep::until(awaited, limit);
    if (awaited.reached()) return;
    look_around(awaited);
    if (!spins_) limit = std::min(2 * limit, kLongNap);
  }
}

void Waiter::look_around(const Awaited& awaited) {
  guard_.glance();
  if (poll_ != nullptr) poll_->poll();
  const std::uint64_t now = now_ns();
  if (now - peers_checked_ns_ >= kCheckPeersEvery) {
    try {
      guard_.check_awaited();
    } catch (const PeerLost&) {
      // A peer may end right after its last publication, which is all that this wait needs.
      if (!awaited.reached()) throw;
    }
    peers_checked_ns_ = now;
  }
}

}  // namespace gradred
