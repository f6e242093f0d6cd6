// The one clock of the library: monotonic, shared by all processes of a host.
#pragma once

#include <chrono>
#include <cstdint>

namespace gradred {

using Clock = std::chrono::steady_clock;

// Nanoseconds since an arbitrary moment that is the same for every process of this host.
inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
          .count());
}

}  // namespace gradred
