#include "base/driver_calls.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>

#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::size_t kMostFunctions = 128;
constexpr std::size_t kMostSlow = 4096;

struct Sums {
  std::atomic<const char*> name{nullptr};
  std::atomic<std::uint64_t> calls{0}, ns{0}, longest_ns{0}, slow_calls{0}, slow_ns{0};
};

std::array<Sums, kMostFunctions> all_sums;

struct Slow {
  std::mutex mutex;
  std::vector<SlowDriverCall> calls;  // used as a ring once it is full
  std::size_t noted = 0;
};

Slow& slow() {
  static auto& all = *new Slow;  // never freed: threads may outlive static objects
  return all;
}

void note_slow(const SlowDriverCall& call) {
  const std::lock_guard lock(slow().mutex);
  if (slow().calls.size() < kMostSlow) {
    slow().calls.push_back(call);
  } else {
    slow().calls[slow().noted % kMostSlow] = call;
  }
  ++slow().noted;
}

}  // namespace

void note_driver_call(std::size_t index, const char* name, std::uint64_t start_ns,
                      std::uint64_t end_ns) {
  check(index < kMostFunctions, "a function of the driver's has a place");
  Sums& sums = all_sums[index];
  const std::uint64_t ns = end_ns - start_ns;
  sums.name.store(name, std::memory_order_relaxed);
  sums.calls.fetch_add(1, std::memory_order_relaxed);
  sums.ns.fetch_add(ns, std::memory_order_relaxed);
  std::uint64_t longest = sums.longest_ns.load(std::memory_order_relaxed);
  while (ns > longest && !sums.longest_ns.compare_exchange_weak(longest, ns)) {
  }
  if (ns < kSlowDriverCallNs) return;
  sums.slow_calls.fetch_add(1, std::memory_order_relaxed);
  sums.slow_ns.fetch_add(ns, std::memory_order_relaxed);
  note_slow({name, start_ns, end_ns, syscall(SYS_gettid)});
}

std::vector<DriverCallSums> driver_call_sums() {
  std::vector<DriverCallSums> made;
  for (const Sums& sums : all_sums) {
    const char* const name = sums.name.load(std::memory_order_relaxed);
    if (name == nullptr) continue;
    made.push_back({name, sums.calls, sums.ns, sums.longest_ns, sums.slow_calls, sums.slow_ns});
  }
  std::ranges::stable_sort(made, std::ranges::greater(), &DriverCallSums::ns);
  return made;
}

std::vector<SlowDriverCall> slow_driver_calls() {
  const std::lock_guard lock(slow().mutex);
  std::vector<SlowDriverCall> made = slow().calls;
  const auto oldest = static_cast<std::ptrdiff_t>(slow().noted % kMostSlow);
  if (slow().noted > made.size()) std::rotate(made.begin(), made.begin() + oldest, made.end());
  return made;
}

}  // namespace gradred
