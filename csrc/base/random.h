// Random numbers that identify things. No two processes get the same number, and none gets 0.
#pragma once

#include <cstdint>
#include <random>

namespace gradred {

inline std::uint64_t random_number() {
  thread_local std::random_device source;  // virtual machines take 20 us to make one
  return std::uint64_t{source()} << 32 | source() | 1;
}

}  // namespace gradred
