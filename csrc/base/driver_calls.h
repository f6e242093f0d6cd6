// Measures how long calls of a device driver take, for profiles and traces. A call that should
// return at once may wait for the device, or for another thread that holds a lock of the driver.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradred {

// Sums over the calls of one function.
struct DriverCallSums {
  const char* name = nullptr;
  std::uint64_t calls = 0, ns = 0, longest_ns = 0;
  std::uint64_t slow_calls = 0, slow_ns = 0;  // calls that took kSlowDriverCallNs or more
};
inline constexpr std::uint64_t kSlowDriverCallNs = 1'000'000;

struct SlowDriverCall {
  const char* name = nullptr;
  std::uint64_t start_ns = 0, end_ns = 0;  // clock.h
  std::int64_t thread = 0;                 // thread number of the kernel
};

// The number of a function that is the compiler's, not in the driver's table.
inline constexpr std::size_t kCompilerCall = 127;

// Whether this process measures driver calls. The value is read when the driver is loaded.
inline std::atomic<bool> measure_driver_calls{false};

// Thread-safe. `index`: number of the function, always used with the same name.
void note_driver_call(std::size_t index, const char* name, std::uint64_t start_ns,
                      std::uint64_t end_ns);
std::vector<DriverCallSums> driver_call_sums();   // functions that were called, largest sum first
std::vector<SlowDriverCall> slow_driver_calls();  // the most recent ones, in order

}  // namespace gradred
