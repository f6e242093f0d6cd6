#include "base/core.h"

#include <sched.h>

#include <atomic>

#include "base/clock.h"

namespace gradred {
namespace {

// If no other thread runs on the core, a yield takes 0.2 to 0.5 us.
constexpr std::uint64_t kLongNs = 3'000;
constexpr std::uint64_t kAWhileNs = 10'000'000;

std::atomic<std::uint64_t> shared_until_ns{0};

}  // namespace

void yield_core() {
  const std::uint64_t begin = now_ns();
  sched_yield();
  const std::uint64_t end = now_ns();
  if (end - begin >= kLongNs) shared_until_ns.store(end + kAWhileNs, std::memory_order_relaxed);
}

bool cores_are_shared() {
  const std::uint64_t until = shared_until_ns.load(std::memory_order_relaxed);
  return until != 0 && now_ns() < until;
}

}  // namespace gradred
