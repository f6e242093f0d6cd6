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
    MemoryNode node{number, {}};
    for (const int core : numbers_in(folder + "/node" + std::to_string(number) + "/cpulist")) {
      if (core >= 0 && core < static_cast<int>(kMaxCores)) {
        node.cores.set(static_cast<std::size_t>(core));
      }
    }
    nodes_.push_back(node);
  }
}

const MemoryNode* MemoryNodes::near(const Cores& cores) const {
  if (!are_several() || cores.allowed.none()) return nullptr;
  const bool known = cores.ran_on >= 0 && cores.ran_on < static_cast<int>(kMaxCores);
  const MemoryNode* last = nullptr;
  for (const MemoryNode& node : nodes_) {
    if ((cores.allowed & ~node.cores).none()) return &node;
    if (known && node.cores[static_cast<std::size_t>(cores.ran_on)]) last = &node;
  }
  return last;
}

std::vector<RanksOnMemoryNode> runs_of(const std::vector<const MemoryNode*>& nodes) {
  std::vector<RanksOnMemoryNode> runs;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    if (runs.empty() || runs.back().node != nodes[rank]) runs.push_back({rank, 0, nodes[rank]});
    ++runs.back().ranks;
  }
  return runs;
}

// By the system call, as libnuma may be missing: https://man7.org/linux/man-pages/man2/mbind.2.html
bool prefer_memory_node(std::byte* data, std::size_t bytes, const MemoryNode* node) noexcept {
  constexpr int kDefault = 0, kPreferred = 1;
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  if (node == nullptr) return syscall(SYS_mbind, data, bytes, kDefault, nullptr, 0, 0) == 0;
  if (node->number >= kMostNodes) return false;
  std::array<unsigned long, kMostNodes / kBits> mask{};
  const auto bit = static_cast<std::size_t>(node->number);
  mask[bit / kBits] |= 1UL << (bit % kBits);
  return syscall(SYS_mbind, data, bytes, kPreferred, mask.data(), kMostNodes + 1, 0) == 0;
}

OnMemoryNode::OnMemoryNode(const MemoryNode* node) noexcept {
  if (node == nullptr) return;
  const std::bitset<kMaxCores> before = allowed_cores();
  if (run_on(node->cores)) before_ = before;
}

OnMemoryNode::~OnMemoryNode() {
  if (before_) run_on(*before_);
}

}  // namespace gradred
