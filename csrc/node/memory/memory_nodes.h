// The memory nodes (NUMA) of this host: which memory is near to which cores.
#pragma once

#include <bitset>
#include <cstddef>
#include <string>
#include <vector>

#include "node/memory/cores.h"

namespace gradred {

inline constexpr int kNoMemoryNode = -1;

class MemoryNodes {
 public:
  static const MemoryNodes& of_this_host();
  // `folder`: the kernel's, /sys/devices/system/node.
  explicit MemoryNodes(const std::string& folder);

  bool are_several() const { return nodes_.size() > 1; }
  // The node that has all these cores. kNoMemoryNode: there is none, or the host has one node only.
  int near(const std::bitset<kMaxCores>& cores) const;

 private:
  struct Node {
    int number;
    std::bitset<kMaxCores> cores;
  };
  std::vector<Node> nodes_;
};

// Consecutive ranks whose memory goes to one node.
struct RanksOnMemoryNode {
  std::size_t first, ranks;
  int node;
};
// `nodes`: of each rank.
std::vector<RanksOnMemoryNode> runs_of(const std::vector<int>& nodes);

// Pages of shared memory that are allocated later come from this node as long as it has any; with
// kNoMemoryNode from that of whoever allocates them. Whole pages. A refusal of the kernel changes
// nothing.
void prefer_memory_node(std::byte* data, std::size_t bytes, int node) noexcept;

}  // namespace gradred
