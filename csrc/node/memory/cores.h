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
  int ran_on = -1;  // the core on which the rank ran when it was asked; -1: not known
};

Cores cores_of_this_thread();
std::size_t core_cache_bytes();          // of the second-level cache of a core; 0: not known
std::bitset<kMaxCores> allowed_cores();  // the affinity mask of this thread alone
// Returns whether this thread may run on these cores alone from now on; if not, nothing changes.
bool run_on(const std::bitset<kMaxCores>& cores) noexcept;
// Returns whether all ranks can run at the same time, each on its own core. Only then may a waiting
// rank spin. `ranks` counts the ranks of the whole host; `group` holds the cores of some of them.
// `threads`: of each rank, which need a core each.
bool each_has_a_core(std::span<const Cores> group, std::size_t ranks, std::size_t threads = 1);

}  // namespace gradred
