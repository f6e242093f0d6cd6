#include "node/memory/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace gradred {
namespace {

// The quota of one control group in cores, rounded down but at least 1; 0: no quota.
std::uint32_t whole_cores(double quota_us, double period_us) {
  if (quota_us <= 0 || period_us <= 0) return 0;
  return std::max(1U, static_cast<std::uint32_t>(quota_us / period_us));
}

std::uint32_t quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period_us = 0;
  if (!(file >> quota >> period_us) || quota == "max") return 0;
  return whole_cores(std::strtod(quota.c_str(), nullptr), period_us);
}

std::uint32_t quota_v1(const std::string& folder) {
  std::ifstream quota(folder + "/cpu.cfs_quota_us"), period(folder + "/cpu.cfs_period_us");
  double quota_us = 0, period_us = 0;
  if (!(quota >> quota_us) || !(period >> period_us)) return 0;
  return whole_cores(quota_us, period_us);
}

std::uint32_t tighter(std::uint32_t a, std::uint32_t b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

// The tightest quota from this process's control group up to the root. Inside a container, the path
// in /proc/self/cgroup may not exist below the mount. The loop then ends at the mount itself.
std::uint32_t cgroup_quota() {
  std::ifstream groups("/proc/self/cgroup");
  std::uint32_t quota = 0;
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && controllers.find("cpu") == std::string::npos) continue;
    const std::string mount = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      quota = tighter(quota, unified ? quota_v2(mount + path) : quota_v1(mount + path));
      if (path.rfind('/') == std::string::npos) break;
    }
  }
  return quota;
}

}  // namespace

std::bitset<kMaxCores> allowed_cores() {
  using Mask = std::bitset<kMaxCores>;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::bit_cast<Mask>(set);
  return Mask().set();  // more cores than the mask holds: treated as unlimited
}

bool run_on(const std::bitset<kMaxCores>& cores) noexcept {
  const auto set = std::bit_cast<cpu_set_t>(cores);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

std::size_t core_cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  return static_cast<std::size_t>(std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE)));
#else
  return 0;
#endif
}

Cores cores_of_this_thread() { return {allowed_cores(), cgroup_quota(), sched_getcpu()}; }

bool each_has_a_core(std::span<const Cores> group, std::size_t ranks, std::size_t threads) {
  std::bitset<kMaxCores> together;
  for (const Cores& cores : group) {
    if (cores.quota != 0 && ranks * threads > cores.quota) return false;
    together |= cores.allowed;
  }
  if (ranks * threads > together.count()) return false;
  // Each rank spreads a load of 1 per thread evenly over its cores. No core may carry more than 1.
  std::vector<double> shares;
  for (const Cores& cores : group) {
    shares.push_back(static_cast<double>(threads) /
                     static_cast<double>(std::max<std::size_t>(1, cores.allowed.count())));
  }
  constexpr std::size_t kBits = 64;
  const auto words = std::bit_cast<std::array<std::uint64_t, kMaxCores / kBits>>(together);
  for (std::size_t word = 0; word < words.size(); ++word) {
    for (std::uint64_t rest = words[word]; rest != 0; rest &= rest - 1) {
      const std::size_t core = word * kBits + static_cast<std::size_t>(std::countr_zero(rest));
      double load = 0;
      for (std::size_t i = 0; i < group.size(); ++i) {
        if (group[i].allowed[core]) load += shares[i];
      }
      if (load > 1.0 + 1e-6) return false;
    }
  }
  return true;
}

}  // namespace gradred
