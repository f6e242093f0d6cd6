// The one clock of the library: monotonic, shared by all processes of a host. By it waits end;
// tests step it (docs/design/waiting.md).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace gradred {

using ClockSteps = std::atomic<std::uint64_t>;  // nanoseconds, which only grow

// What tests have added to the clock; a constant zero unless this process was told of a file.
extern constinit std::atomic<const ClockSteps*> clock_steps;

// Adds to the clock from now on what the file holds: 8 bytes, which all processes of a test map.
// An empty path changes nothing. Throws UsageError for a file that cannot be mapped.
void take_clock_steps_from(const std::string& path);

// The kernel's clock, without steps: for the limits that it is given, as moments.
inline std::uint64_t kernel_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Nanoseconds since an arbitrary moment that is the same for every process of this host.
inline std::uint64_t now_ns() {
  return kernel_ns() + clock_steps.load(std::memory_order_relaxed)->load(std::memory_order_relaxed);
}

}  // namespace gradred
