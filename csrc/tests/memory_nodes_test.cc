// On which memory node the rings of a rank lie, with a host of two nodes that a folder
// describes, with the policies that the kernel reports for this process's memory, and with the
// cores from which it is touched first.
#include "node/memory/memory_nodes.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "expect.h"
#include "node/memory/shared_part.h"

namespace gradred::testing {

// Pages that were touched first, and the cores on which the thread was allowed to run then.
struct Touch {
  const std::byte* at;
  std::bitset<kMaxCores> cores;
};
std::vector<Touch> touches;

}  // namespace gradred::testing

// In place of the C library's function.
extern "C" int madvise(void* at, std::size_t bytes, int advice) noexcept {
  constexpr int kPopulateWrite = 23;
  if (advice == kPopulateWrite) {
    gradred::testing::touches.push_back(
        {static_cast<const std::byte*>(at), gradred::allowed_cores()});
  }
  return static_cast<int>(syscall(SYS_madvise, at, bytes, advice));
}

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

// The memory nodes of a host with these nodes, whose numbers and cores are as the kernel writes
// them.
MemoryNodes nodes_of_host(
    std::initializer_list<std::pair<std::string, std::string>> numbers_and_cores) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("gradred-nodes-" + std::to_string(getpid()));
  std::string all;
  for (const auto& [number, cores] : numbers_and_cores) {
    std::filesystem::create_directories(folder / ("node" + number));
    std::ofstream(folder / ("node" + number) / "cpulist") << cores << "\n";
    all += (all.empty() ? "" : ",") + number;
  }
  std::ofstream(folder / "has_memory") << all << "\n";
  MemoryNodes found(folder.string());
  std::filesystem::remove_all(folder);
  return found;
}

void a_rank_is_near_the_node_that_has_all_its_cores() {
  const MemoryNodes two = nodes_of_host({{"0", "0-3,8"}, {"2", "4-7,9-11"}});
  const MemoryNodes one = nodes_of_host({{"0", "0-3,8"}});
  const auto near = [&](const Cores& rank) {
    const MemoryNode* const node = two.near(rank);
    return node != nullptr ? node->number : -1;
  };
  expect(two.are_several() && !one.are_several(), "as the folder says");
  expect(near({cores({1, 8})}) == 0 && near({cores({11})}) == 2, "the node with these cores");
  expect(near({cores({3, 4})}) == -1, "cores of both");
  expect(near({cores({3, 4}), 0, 4}) == 2, "cores of both, and it runs on the second");
  expect(near({cores({1, 8}), 0, 4}) == 0, "it was bound after it ran elsewhere");
  expect(near({cores({20}), 0, 20}) == -1, "a core that no node has");
  expect(near({}) == -1, "no core");
  expect(one.near({cores({1}), 0, 1}) == nullptr, "nothing to choose");
  expect(!MemoryNodes("/nowhere").are_several(), "no folder");
}

void neighbours_on_one_node_go_together() {
  const MemoryNode zero{0, {}}, two{2, {}};
  const auto runs = runs_of({&zero, &zero, &two, nullptr, &zero});
  expect(runs.size() == 4 && runs_of({}).empty(), "four runs");
  expect(runs[0].first == 0 && runs[0].ranks == 2 && runs[0].node == &zero, "the first two");
  expect(runs[3].first == 4 && runs[3].ranks == 1 && runs[3].node == &zero, "the last one");
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

// A part of a pool for three ranks, which are near these nodes.
struct ThreeRanks {
  static constexpr std::size_t kRanks = 3;
  OneRank bootstrap;
  std::string reason;
  const NodeOptions options = SharedPart::rounded({}, kRanks);
  const Layout layout{kRanks, options};
  const std::shared_ptr<Pool> pool =
      Pool::create(bootstrap, layout.line_bytes, layout.room_bytes, reason);
  PoolPart* part = nullptr;

  explicit ThreeRanks(std::vector<const MemoryNode*> nodes) {
    pool->introduce({{this_process(), {}}});
    part = pool->take(layout.line_bytes, layout.room_bytes, options.slot_bytes);
    part->memory_nodes = std::move(nodes);
  }
  void prepare(PoolPart::Real wanted) const {
    SharedPart::prepare(*pool, *part, kRanks, options, wanted);
  }
  std::byte* rooms() const { return pool->at(part->rooms); }
  // The rank to which this place in the rooms belongs; -1: none.
  int owner(const std::byte* at) const {
    const auto within = [&](std::size_t begin, std::size_t each) {
      const auto place = static_cast<std::size_t>(at - rooms());
      const bool inside = place >= begin && place < begin + kRanks * each;
      return inside ? static_cast<int>((place - begin) / each) : -1;
    };
    return within(layout.rings, 2 * options.ring_bytes);
  }
};

void rings_lie_on_the_nodes_of_their_ranks() {
  const MemoryNode zero{0, {}};
  const ThreeRanks ranks({&zero, &zero, nullptr});
  ranks.prepare(PoolPart::Real::kAll);
  const auto& [layout, options] = std::tie(ranks.layout, ranks.options);
  std::byte* const rooms = ranks.rooms();
  expect(ranks.part->held_bytes == layout.line_bytes + layout.room_bytes, "each byte once");
  for (std::size_t at = 0; at < layout.room_bytes; at += kPage) {
    expect(std::to_integer<int>(rooms[at]) == 0, "there");
  }
  if (policy_at(rooms).empty() || !ranks.part->is_placed) return;  // without nodes, or a container
  const std::byte* const rings = rooms + layout.rings;
  const std::size_t each = 2 * options.ring_bytes;
  expect(policy_at(rings).starts_with("prefer"), "rings of rank 0");
  expect(policy_at(rings + each).starts_with("prefer"), "rings of rank 1");
  expect(policy_at(rings + 2 * each) == "default", "rings of a rank that has no node");
  expect(policy_at(rooms) == "default", "what all use");
}

// No host has these nodes, so the kernel refuses to take pages from them, as in a container.
void where_the_kernel_refuses_pages_are_touched_first_from_cores_near_their_rank() {
  const auto before = allowed_cores();
  std::vector<std::string> some;
  for (std::size_t core = 0; core < kMaxCores && some.size() < 2; ++core) {
    if (before[core]) some.push_back(std::to_string(core));
  }
  const MemoryNodes nodes = nodes_of_host({{"900", some.front()}, {"901", some.back()}});
  const auto near_core = [&](const std::string& text) {
    return nodes.near({cores({static_cast<std::size_t>(std::stoi(text))})});
  };
  const MemoryNode* const first = near_core(some.front());
  const MemoryNode* const last = near_core(some.back());
  for (const PoolPart::Real wanted :
       {PoolPart::Real::kSlots, PoolPart::Real::kBeginnings, PoolPart::Real::kAll}) {
    const ThreeRanks ranks({first, last, nullptr});
    touches.clear();
    ranks.prepare(wanted);
    expect(!ranks.part->is_placed, "the kernel refuses");
    std::array<unsigned, 4> seen{};
    for (const Touch& touch : touches) {
      const int owner = ranks.owner(touch.at);
      ++seen[static_cast<std::size_t>(owner + 1)];
      const auto& expected = owner == 0 ? first->cores : owner == 1 ? last->cores : before;
      expect(touch.cores == expected, "touched near its rank " + std::to_string(owner));
    }
    expect(seen[1] > 0 && seen[2] > 0, "pages of the two ranks");
    expect(allowed_cores() == before, "the thread runs where it did before");
  }
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  a_rank_is_near_the_node_that_has_all_its_cores();
  neighbours_on_one_node_go_together();
  rings_lie_on_the_nodes_of_their_ranks();
  where_the_kernel_refuses_pages_are_touched_first_from_cores_near_their_rank();
  return report("memory_nodes_test");
}
