// Which plan serves a call: a function of agreed values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/schedule.h"

namespace gradred {

// Where the ranks of a communicator live, the same on all of them.
struct Topology {
  std::vector<int> host_of;  // by rank; hosts numbered in the order of their first rank
  int hosts = 1;
  int local = 0;  // ranks per host where every host has a run of equally many ranks, else 0

  static Topology of(std::vector<int> host_of);
};

struct Choice {
  std::string name;
  std::size_t slices = 1;
  Parameters parameters;
  std::string reason;
};
std::uint64_t hash_of(const Choice& choice);  // never 0

Choice choose(Collective collective, std::size_t bytes, int size, const Topology& topology);

}  // namespace gradred
