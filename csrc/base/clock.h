// The only clock of the library, by which waits end. It is monotonic and the same for all processes
// of a host. Tests can step it (docs/design/engine.md).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace gradred {

using ClockSteps = std::atomic<std::uint64_t>;  // nanoseconds; they only grow

// What tests have added to the clock. Points to a constant zero unless this process was given a
// file.
extern constinit std::atomic<const ClockSteps*> clock_steps;

// From now on adds the content of the file to the clock: 8 bytes, which all processes of a test
// map. An empty path changes nothing. Throws UsageError if the file cannot be mapped.
void take_clock_steps_from(const std::string& path);

// The kernel's clock without steps, for time limits that are passed to the kernel.
inline std::uint64_t kernel_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Nanoseconds since an arbitrary moment that is the same for all processes of this host.
inline std::uint64_t now_ns() {
  return kernel_ns() + clock_steps.load(std::memory_order_relaxed)->load(std::memory_order_relaxed);
}

}  // namespace gradred
