// The memory nodes (NUMA) of this host: which memory is near to which cores.
#pragma once

#include <bitset>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "node/memory/cores.h"

namespace gradred {

struct MemoryNode {
  int number;
  std::bitset<kMaxCores> cores;
};

class MemoryNodes {
 public:
  static const MemoryNodes& of_this_host();
  // `folder`: the kernel's, /sys/devices/system/node.
  explicit MemoryNodes(const std::string& folder);

  bool are_several() const { return nodes_.size() > 1; }
  // The node that has all cores of a rank, or else the core on which it ran. nullptr: there is
  // none, or the host has one node only.
  const MemoryNode* near(const Cores& cores) const;

 private:
  std::vector<MemoryNode> nodes_;
};

// Consecutive ranks whose memory goes to one node.
struct RanksOnMemoryNode {
  std::size_t first, ranks;
  const MemoryNode* node;
};
// `nodes`: of each rank.
std::vector<RanksOnMemoryNode> runs_of(const std::vector<const MemoryNode*>& nodes);

// Pages of shared memory that are allocated later come from this node as long as it has any; with
// nullptr from that of whoever allocates them. Whole pages. Returns false if the kernel refuses,
// which changes nothing.
bool prefer_memory_node(std::byte* data, std::size_t bytes, const MemoryNode* node) noexcept;

// While this object lives, this thread runs on the cores of a memory node, from which the pages
// come that it touches first. nullptr, or where the kernel refuses: it runs where it did before.
class OnMemoryNode {
 public:
  explicit OnMemoryNode(const MemoryNode* node) noexcept;
  ~OnMemoryNode();
  OnMemoryNode(const OnMemoryNode&) = delete;
  OnMemoryNode& operator=(const OnMemoryNode&) = delete;

 private:
  std::optional<std::bitset<kMaxCores>> before_;
};

}  // namespace gradred
