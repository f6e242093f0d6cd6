// Which ranks of a communicator share a host; the same on all ranks.
#pragma once

#include <vector>

namespace gradred {

struct Topology {
  std::vector<int> host_of;  // by rank; hosts numbered in the order of their first rank
  int hosts = 1;
  int local = 0;  // ranks per host where every host has a run of equally many ranks, else 0

  static Topology of(std::vector<int> host_of);
};

}  // namespace gradred
