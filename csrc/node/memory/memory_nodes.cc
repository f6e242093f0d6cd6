#include "node/memory/memory_nodes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <fstream>
#include <sstream>

namespace gradred {
namespace {

constexpr int kMostNodes = 1024;

// The numbers of a list of the kernel's, such as "0-3,8"; empty if it cannot be read.
std::vector<int> numbers_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<int> found;
  for (std::string range; std::getline(file, range, ',');) {
    std::istringstream text(range);
    int first = 0, last = 0;
    char dash = 0;
    if (!(text >> first)) break;
    if (!(text >> dash >> last)) last = first;
    for (int number = first; number <= last; ++number) found.push_back(number);
  }
  return found;
}

}  // namespace

const MemoryNodes& MemoryNodes::of_this_host() {
  static const MemoryNodes found("/sys/devices/system/node");
  return found;
}

MemoryNodes::MemoryNodes(const std::string& folder) {
  for (const int number : numbers_in(folder + "/has_memory")) {
    Node node{number, {}};
    for (const int core : numbers_in(folder + "/node" + std::to_string(number) + "/cpulist")) {
      if (core >= 0 && core < static_cast<int>(kMaxCores)) {
        node.cores.set(static_cast<std::size_t>(core));
      }
    }
    nodes_.push_back(node);
  }
}

int MemoryNodes::near(const std::bitset<kMaxCores>& cores) const {
  if (!are_several() || cores.none()) return kNoMemoryNode;
  for (const Node& node : nodes_) {
    if ((cores & ~node.cores).none()) return node.number;
  }
  return kNoMemoryNode;
}

std::vector<RanksOnMemoryNode> runs_of(const std::vector<int>& nodes) {
  std::vector<RanksOnMemoryNode> runs;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    if (runs.empty() || runs.back().node != nodes[rank]) runs.push_back({rank, 0, nodes[rank]});
    ++runs.back().ranks;
  }
  return runs;
}

// By the system call, as libnuma may be missing: https://man7.org/linux/man-pages/man2/mbind.2.html
void prefer_memory_node(std::byte* data, std::size_t bytes, int node) noexcept {
  constexpr int kDefault = 0, kPreferred = 1;
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  std::array<unsigned long, kMostNodes / kBits> mask{};
  if (node >= kMostNodes) return;
  const bool is_known = node >= 0;
  if (is_known)
    mask[static_cast<std::size_t>(node) / kBits] |= 1UL << (static_cast<std::size_t>(node) % kBits);
  [[maybe_unused]] const long failed =
      syscall(SYS_mbind, data, bytes, is_known ? kPreferred : kDefault,
              is_known ? mask.data() : nullptr, is_known ? kMostNodes + 1 : 0, 0);
}

}  // namespace gradred
