#include "node/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/clock.h"
#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
constexpr std::uint64_t kPollEvery = 5 * kMicrosecond;
constexpr std::uint64_t kSpinFor = 20 * kMicrosecond;  // then yield: the peer may need our core
constexpr std::uint64_t kYieldFor = 5 * kMillisecond;  // then sleep: the peer is busy elsewhere
constexpr std::uint64_t kShortNap = 1 * kMillisecond;
constexpr std::uint64_t kLongNap = 16 * kMillisecond;
constexpr std::uint64_t kCheckPeersEvery = 50 * kMillisecond;
constexpr int kYieldsWhenShared = 5;
constexpr int kLooksPerClock = 16;

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

// Not FUTEX_PRIVATE: the word lies in memory that processes share.
long futex(std::atomic<std::uint32_t>& word, int what, std::uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), what, value, limit, nullptr,
                 0);
}

void nap(const std::atomic<std::uint64_t>& word, std::uint64_t target, Bell& bell,
         std::uint64_t nanoseconds) {
  const timespec limit{static_cast<time_t>(nanoseconds / 1'000'000'000),
                       static_cast<long>(nanoseconds % 1'000'000'000)};
  bell.sleepers.fetch_add(1, std::memory_order_acq_rel);
  const auto rings = bell.rings.load(std::memory_order_acquire);
  if (!Waiter::reached(word, target)) futex(bell.rings, FUTEX_WAIT, rings, &limit);
  bell.sleepers.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace

void Waiter::ring(Bell& bell) {
  bell.rings.fetch_add(1, std::memory_order_acq_rel);
  futex(bell.rings, FUTEX_WAKE, INT_MAX, nullptr);
}

// True when the word was reached, false when it is time to sleep.
bool Waiter::spin_and_yield(const std::atomic<std::uint64_t>& word, std::uint64_t target) {
  if (!spins_) {
    for (int i = 0; i < kYieldsWhenShared; ++i) {
      sched_yield();
      if (reached(word, target)) return true;
    }
    look_around(word, target);
    return reached(word, target);
  }
  const std::uint64_t start = now_ns();
  for (std::uint64_t now = start, polled = start; now - start < kYieldFor; now = now_ns()) {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (reached(word, target)) return true;
      relax();
    }
    if (now - polled >= kPollEvery) {
      look_around(word, target);
      polled = now;
    }
    if (now - start > kSpinFor) sched_yield();
  }
  return false;
}

void Waiter::wait_long(const std::atomic<std::uint64_t>& word, std::uint64_t target, Bell& bell) {
  const std::uint64_t begin = now_ns();
  peers_checked_ns_ = begin;
  if (!spin_and_yield(word, target)) sleep_until(word, target, bell);
  if (charged_ == nullptr) return;
  const std::uint64_t sum = charged_->load(std::memory_order_relaxed) + now_ns() - begin;
  charged_->store(sum, std::memory_order_relaxed);
}

void Waiter::sleep_until(const std::atomic<std::uint64_t>& word, std::uint64_t target, Bell& bell) {
  std::uint64_t limit = kShortNap;
  while (!reached(word, target)) {
    nap(word, target, bell, limit);
    if (reached(word, target)) return;
    look_around(word, target);
    if (!spins_) limit = std::min(2 * limit, kLongNap);
  }
}

void Waiter::look_around(const std::atomic<std::uint64_t>& word, std::uint64_t target) {
  guard_.glance();
  if (poll_ != nullptr) poll_->poll();
  const std::uint64_t now = now_ns();
  if (now - peers_checked_ns_ >= kCheckPeersEvery) {
    try {
      guard_.check_awaited();
    } catch (const PeerLost&) {
      // A peer may end right after its last publication, which is all that we need of it.
      if (!reached(word, target)) throw;
    }
    peers_checked_ns_ = now;
  }
}

}  // namespace gradred
