// The cores that ranks may run on, which decide whether a waiting rank may spin.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>

namespace gradred {

inline constexpr std::size_t kMaxCores = 1024;

// The cores that a rank may run on.
struct Cores {
  std::bitset<kMaxCores> allowed;  // the affinity mask
  std::uint32_t quota = 0;         // whole cores that the control group grants; 0: no limit
};

Cores cores_of_this_thread();
std::bitset<kMaxCores> allowed_cores();  // the affinity mask of this thread alone
// Returns whether all ranks can run at the same time, each on its own core. Only then may a waiting
// rank spin. `ranks` counts the ranks of the whole host; `group` holds the cores of some of them.
bool each_has_a_core(std::span<const Cores> group, std::size_t ranks);

}  // namespace gradred
