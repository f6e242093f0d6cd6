// The cores that ranks may use, and so whether a rank that waits may keep its own.
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
std::bitset<kMaxCores> allowed_cores();  // their mask alone
// Whether all ranks can run at the same time, each on a core of its own: only then may a waiting
// rank spin. `ranks` counts the ranks of the whole host, `group` holds the cores of some of them.
bool each_has_a_core(std::span<const Cores> group, std::size_t ranks);

}  // namespace gradred
