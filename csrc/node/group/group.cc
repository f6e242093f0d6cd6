#include "node/group/group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "node/memory/cores.h"

namespace gradred {
namespace {

// What each rank sends to the others when the group is created.
struct Introduction {
  PoolMember member;
  std::size_t begin = 0;  // on rank 0: where the group's memory begins
  char error[160] = {};   // on rank 0: why there is no memory
};

}  // namespace

std::unique_ptr<NodeGroup> NodeGroup::create(Bootstrap& bootstrap, const NodeOptions& wanted,
                                             std::string& reason) {
  const auto size = static_cast<std::size_t>(bootstrap.size());
  const NodeOptions options = SharedPart::rounded(wanted, size);
  const Layout layout(size, options);
  auto pool = Pool::create(bootstrap, layout.line_bytes, layout.room_bytes, reason);
  if (pool == nullptr) return nullptr;
  Introduction mine{.member = {this_process(), cores_of_this_thread()}};
  if (bootstrap.rank() == 0) {  // a new pool allocates its first group at full size
    try {
      PoolPart* part = pool->take(layout.line_bytes, layout.room_bytes, options.slot_bytes);
      check(part != nullptr, "a new pool has room for a group of all");
      SharedPart::prepare(*pool, *part, size, options, PoolPart::Real::kAll);
      mine.begin = part->lines;
    } catch (const TransportError& error) {
      set_text(mine.error, error.what());
    }
  }
  std::vector<Introduction> all(size);
  bootstrap.allgather(&mine, sizeof mine, all.data());  // after it, rank 0 has prepared the part
  if (all.front().error[0] != '\0') {
    reason = "rank 0: " + std::string(all.front().error);
    return nullptr;
  }
  std::vector<PoolMember> members;
  for (const Introduction& introduction : all) members.push_back(introduction.member);
  pool->introduce(std::move(members));
  std::vector<std::size_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  return join(std::move(pool), all.front().begin, ranks, static_cast<std::size_t>(bootstrap.rank()),
              bootstrap.names());
}

PoolPart* NodeGroup::reserve(Pool& pool, std::size_t ranks, const NodeOptions& wanted) {
  const NodeOptions options = SharedPart::rounded(wanted, ranks);
  const Layout layout(ranks, options);
  PoolPart* part = pool.take(layout.line_bytes, layout.room_bytes, options.slot_bytes);
  if (part == nullptr) return nullptr;
  try {
    SharedPart::prepare(pool, *part, ranks, options, SharedPart::at_first(options, ranks));
  } catch (const TransportError&) {
    pool.free(*part);
    return nullptr;
  }
  return part;
}

std::unique_ptr<NodeGroup> NodeGroup::join(std::shared_ptr<Pool> pool, std::size_t begin,
                                           std::span<const std::size_t> members, std::size_t rank,
                                           RankNames names) {
  allow_barriers();
  std::vector<ProcessId> processes;
  std::vector<Cores> cores;
  for (const std::size_t member : members) {
    processes.push_back(pool->member(member).process);
    cores.push_back(pool->member(member).cores);
  }
  const auto& agreed = reinterpret_cast<const Header*>(pool->at(begin))->options;
  const bool spins = each_has_a_core(cores, std::max(members.size(), agreed.ranks_on_host));
  return std::unique_ptr<NodeGroup>(
      new NodeGroup(std::move(pool), begin, rank, std::move(processes), std::move(names), spins));
}

NodeGroup::NodeGroup(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
                     std::vector<ProcessId> processes, RankNames names, bool spins)
    : NodeAgreement(std::move(pool), begin, rank, std::move(processes), std::move(names), spins),
      ways_(*this) {}

void NodeGroup::run(const NodeCall& call, Poll* poll) { ways_.run(call, poll); }

}  // namespace gradred
