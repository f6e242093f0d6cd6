// How long calls of a device's driver take, for a profile or a trace: a call that should return at
// once may wait for the device, or for another thread that has the driver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradred {

// Of one function.
struct DriverCallSums {
  const char* name = nullptr;
  std::uint64_t calls = 0, ns = 0, longest_ns = 0;
  std::uint64_t slow_calls = 0, slow_ns = 0;  // that took kSlowDriverCallNs and more
};
inline constexpr std::uint64_t kSlowDriverCallNs = 1'000'000;

struct SlowDriverCall {
  const char* name = nullptr;
  std::uint64_t start_ns = 0, end_ns = 0;  // clock.h
  std::int64_t thread = 0;                 // as the kernel counts them
};

// Of the process. Whether they are to be measured is asked when the driver is loaded.
inline std::atomic<bool> measure_driver_calls{false};

// `index` is that of the function, always with the same name. Any thread.
void note_driver_call(std::size_t index, const char* name, std::uint64_t start_ns,
                      std::uint64_t end_ns);
std::vector<DriverCallSums> driver_call_sums();   // those that were called, the longest first
std::vector<SlowDriverCall> slow_driver_calls();  // the last of them, in their order

}  // namespace gradred
