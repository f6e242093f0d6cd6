// On which memory node the slots and chunks of a rank lie, with a host of two nodes that a folder
// describes, and with the policies that the kernel reports for this process's memory.
#include "node/memory/memory_nodes.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "expect.h"
#include "node/memory/shared_part.h"

namespace gradred::testing {
namespace {

class OneRank final : public Bootstrap {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void allgather(const void* mine, std::size_t bytes, void* all) override {
    std::memcpy(all, mine, bytes);
  }
  void barrier() override {}
};

std::bitset<kMaxCores> cores(std::initializer_list<std::size_t> numbers) {
  std::bitset<kMaxCores> made;
  for (const std::size_t number : numbers) made.set(number);
  return made;
}

void a_rank_is_near_the_node_that_has_all_its_cores() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("gradred-nodes-" + std::to_string(getpid()));
  for (const char* node : {"node0", "node2"}) std::filesystem::create_directories(folder / node);
  std::ofstream(folder / "has_memory") << "0,2\n";
  std::ofstream(folder / "node0" / "cpulist") << "0-3,8\n";
  std::ofstream(folder / "node2" / "cpulist") << "4-7,9-11\n";
  const MemoryNodes two(folder.string());
  std::ofstream(folder / "has_memory") << "0\n";
  const MemoryNodes one(folder.string());
  std::filesystem::remove_all(folder);
  expect(two.are_several() && !one.are_several(), "as the folder says");
  expect(two.near(cores({1, 8})) == 0 && two.near(cores({11})) == 2, "the node with these cores");
  expect(two.near(cores({3, 4})) == kNoMemoryNode, "cores of both");
  expect(two.near(cores({20})) == kNoMemoryNode, "a core that no node has");
  expect(two.near({}) == kNoMemoryNode, "no core");
  expect(one.near(cores({1})) == kNoMemoryNode, "nothing to choose");
  expect(!MemoryNodes("/nowhere").are_several(), "no folder");
}

void neighbours_on_one_node_go_together() {
  const auto runs = runs_of({0, 0, 2, kNoMemoryNode, 0});
  expect(runs.size() == 4 && runs_of({}).empty(), "four runs");
  expect(runs[0].first == 0 && runs[0].ranks == 2 && runs[0].node == 0, "the first two");
  expect(runs[3].first == 4 && runs[3].ranks == 1 && runs[3].node == 0, "the last one");
}

// The policy of the mapping that has this address, as in /proc/self/numa_maps; empty: not known.
std::string policy_at(const std::byte* data) {
  std::ifstream maps("/proc/self/numa_maps");
  std::string found;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream text(line);
    std::uintptr_t begin = 0;
    std::string policy;
    text >> std::hex >> begin >> policy;
    if (begin > reinterpret_cast<std::uintptr_t>(data)) break;
    found = policy;
  }
  return found;
}

void slots_and_chunks_lie_on_the_nodes_of_their_ranks() {
  OneRank bootstrap;
  std::string reason;
  const std::size_t ranks = 3;
  const NodeOptions options = SharedPart::rounded({}, ranks);
  const Layout layout(ranks, options);
  const auto pool = Pool::create(bootstrap, layout.line_bytes, layout.room_bytes, reason);
  pool->introduce({{this_process(), {}}});
  PoolPart* const part = pool->take(layout.line_bytes, layout.room_bytes, options.slot_bytes);
  part->memory_nodes = {0, 0, kNoMemoryNode};
  SharedPart::prepare(*pool, *part, ranks, options, PoolPart::Real::kAll);
  expect(part->held_bytes == layout.line_bytes + layout.room_bytes, "each byte once");
  std::byte* const rooms = pool->at(part->rooms);
  for (std::size_t at = 0; at < layout.room_bytes; at += kPage) {
    expect(std::to_integer<int>(rooms[at]) == 0, "there");
  }
  if (policy_at(rooms).empty()) return;  // a kernel without memory nodes
  const std::byte* const slots = rooms + layout.slots;
  const std::byte* const chunks = rooms + layout.chunks;
  const std::string own = policy_at(slots + 2 * 2 * options.slot_bytes);
  if (policy_at(slots) == own) return;  // the kernel has refused, as in some containers
  expect(policy_at(slots).starts_with("prefer"), "slots of rank 0");
  expect(policy_at(slots + 2 * options.slot_bytes).starts_with("prefer"), "slots of rank 1");
  expect(policy_at(chunks).starts_with("prefer"), "chunks of rank 0");
  expect(own == "default", "slots of a rank that has no node");
  const std::size_t each = options.depth * options.chunk_bytes;
  expect(policy_at(chunks + 2 * each) == "default", "chunks of a rank that has no node");
  expect(policy_at(rooms) == "default", "what all use");
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  a_rank_is_near_the_node_that_has_all_its_cores();
  neighbours_on_one_node_go_together();
  slots_and_chunks_lie_on_the_nodes_of_their_ranks();
  return report("memory_nodes_test");
}
