#include "node/group/group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/tell_once.h"
#include "base/text.h"
#include "node/group/cache_groups.h"
#include "node/memory/cores.h"

namespace gradred {
namespace {

// What rank 0 sends to the others when the group is created.
struct Prepared {
  std::size_t begin = 0;  // of the group's memory
  char error[160] = {};   // why there is no memory
};

PoolPart* prepared(Pool& pool, std::span<const std::size_t> members, const NodeOptions& options,
                   PoolPart::Real wanted) {
  const Layout layout(members.size(), options);
  PoolPart* const part = pool.take(layout.line_bytes, layout.room_bytes, options.slot_bytes);
  if (part == nullptr) return nullptr;
  part->memory_nodes = pool.memory_nodes_of(members);
  try {
    SharedPart::prepare(pool, *part, members.size(), options, wanted);
  } catch (const TransportError&) {
    pool.free(*part);
    throw;
  }
  return part;
}

}  // namespace

std::unique_ptr<NodeGroup> NodeGroup::create(Bootstrap& bootstrap, const NodeOptions& wanted,
                                             std::string& reason) {
  const auto size = static_cast<std::size_t>(bootstrap.size());
  const NodeOptions options = SharedPart::rounded(wanted, size);
  const Layout layout(size, options);
  auto pool = Pool::create(bootstrap, layout.line_bytes, layout.room_bytes, reason);
  if (pool == nullptr) return nullptr;
  std::vector<PoolMember> members(size);
  const PoolMember own{.process = this_process(), .cores = cores_of_this_thread()};
  bootstrap.allgather(&own, sizeof own, members.data());
  pool->introduce(std::move(members));
  std::vector<std::size_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  Prepared mine;
  if (bootstrap.rank() == 0) {  // a new pool allocates its first group at full size
    try {
      const PoolPart* const part = prepared(*pool, ranks, options, PoolPart::Real::kAll);
      check(part != nullptr, "a new pool has room for a group of all");
      mine.begin = part->lines;
    } catch (const TransportError& error) {
      set_text(mine.error, error.what());
    }
  }
  std::vector<Prepared> all(size);
  bootstrap.allgather(&mine, sizeof mine, all.data());  // after it, rank 0 has prepared the part
  if (all.front().error[0] != '\0') {
    reason = "rank 0: " + std::string(all.front().error);
    return nullptr;
  }
  auto group = join(pool, all.front().begin, ranks, static_cast<std::size_t>(bootstrap.rank()),
                    bootstrap.names());
  if (size >= kLeastMeasured && size <= kMostMeasured && group->spins()) {
    group->divide(measured_cache_groups(*group));
    pool->divide(group->cache_groups());
  }
  return group;
}

PoolPart* NodeGroup::reserve(Pool& pool, std::span<const std::size_t> members,
                             const NodeOptions& wanted) {
  const NodeOptions options = SharedPart::rounded(wanted, members.size());
  try {
    return prepared(pool, members, options, SharedPart::at_first(options, members.size()));
  } catch (const TransportError&) {
    return nullptr;
  }
}

std::unique_ptr<NodeGroup> NodeGroup::join(std::shared_ptr<Pool> pool, std::size_t begin,
                                           std::span<const std::size_t> members, std::size_t rank,
                                           RankNames names) {
  allow_barriers();
  std::vector<ProcessId> processes;
  std::vector<Cores> cores;
  std::vector<std::uint32_t> groups;
  for (const std::size_t member : members) {
    processes.push_back(pool->member(member).process);
    cores.push_back(pool->member(member).cores);
    groups.push_back(pool->member(member).cache_group);
  }
  const auto& agreed = reinterpret_cast<const Header*>(pool->at(begin))->options;
  const std::size_t ranks = std::max(members.size(), agreed.ranks_on_host);
  const bool spins = each_has_a_core(cores, ranks);
  const bool helped = agreed.threads > 1 && each_has_a_core(cores, ranks, agreed.threads);
  const std::size_t threads = helped ? agreed.threads : 1;
  if (agreed.threads != threads && rank == 0) {
    tell_once("GRADRED_THREADS=" + std::to_string(agreed.threads) +
              " is ignored: this host has no " + std::to_string(agreed.threads) +
              " cores for each of " + std::to_string(ranks) + " ranks");
  }
  auto group = std::unique_ptr<NodeGroup>(
      new NodeGroup(std::move(pool), begin, rank, std::move(processes), std::move(names), spins));
  group->use_threads(threads);
  if (threads > 1) Helpers::may_run_on(cores[rank].allowed);
  group->divide(worthwhile_groups(groups));
  return group;
}

NodeGroup::NodeGroup(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
                     std::vector<ProcessId> processes, RankNames names, bool spins)
    : NodeAgreement(std::move(pool), begin, rank, std::move(processes), std::move(names), spins),
      ways_(*this) {}

void NodeGroup::divide(std::vector<std::uint32_t> cache_groups) {
  cache_groups_ = std::move(cache_groups);
  ways_.divide(cache_groups_);
}

void NodeGroup::run(const NodeCall& call, Poll* poll) { ways_.run(call, poll); }

}  // namespace gradred
