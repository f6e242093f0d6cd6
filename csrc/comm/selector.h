// Which plan serves a call: a function of agreed values only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// What the choice depends on beside size and topology.
struct Asked {
  Collective collective = Collective::kAllreduce;
  std::size_t bytes = 0;    // of the vector; of one rank's block (reduce_scatter, allgather)
  bool on_node = false;     // all ranks share memory, and the native paths there serve the call
  std::string_view plan{};  // the name of a schedule; empty: any
  std::size_t slices = 0;   // 0: any
  int root = 0;             // of a broadcast
};
Choice choose(const Asked& asked, int size, const Topology& topology);

// The schedule that says what the plan "node" does. None is right for broadcasts, which every rank
// reads from the root: nullopt.
std::optional<Choice> specification_of_node(Collective collective, std::size_t bytes, int size);

}  // namespace gradred
