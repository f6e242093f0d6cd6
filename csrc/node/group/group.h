// Collective operations through shared memory among the ranks of one host. They use no MPI.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "node/agreement/node_agreement.h"
#include "node/memory/bootstrap.h"
#include "node/paths/ways.h"

namespace gradred {

// At most one thread of a rank uses the group at a time, and at most one operation runs at a time.
// Operations block here; NodeExecution carries out the same operations without blocking. They throw
//   UsageError      on every rank, if the ranks' signatures differ or a rank has aborted. The group
//                   remains usable, and user memory is unchanged.
//   PeerLost        if the process of a peer has ended.
//   what Poll threw, on this rank; TransportError or TimeoutError with the same text on the others.
// After PeerLost and after an error from Poll the group is poisoned: every further operation
// throws.
class NodeGroup final : public NodeAgreement {
 public:
  // Collective. Either all ranks get a group, or all get nullptr and the same `reason`: the ranks
  // share no memory, or there is too little of it. The options of rank 0 apply.
  static std::unique_ptr<NodeGroup> create(Bootstrap& bootstrap, const NodeOptions& options,
                                           std::string& reason);
  // The same for processes that share a pool, without a collective call. Rank 0 calls reserve() and
  // sends the others the offset of the part; then all ranks call join(). Once the peers know the
  // part, it belongs to the group. reserve() returns nullptr if no memory is available.
  static PoolPart* reserve(Pool& pool, std::span<const std::size_t> members,
                           const NodeOptions& options);
  static std::unique_ptr<NodeGroup> join(std::shared_ptr<Pool> pool, std::size_t begin,
                                         std::span<const std::size_t> members, std::size_t rank,
                                         RankNames names);
  // Carries out an operation. `poll`: nullptr if there is nothing to do while waiting.
  void run(const NodeCall& call, Poll* poll = nullptr);

  // Sets the cache groups. No operation is in flight, and all ranks give the same.
  void divide(std::vector<std::uint32_t> cache_groups);

  NodeWays& ways() { return ways_; }  // for NodeExecution

 private:
  NodeGroup(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
            std::vector<ProcessId> processes, RankNames names, bool spins);
  void forget_peers() noexcept override { ways_.forget_peers(); }

  NodeWays ways_;
};

// Collective. Returns the nanoseconds that a flag takes from rank 0 to rank 1, as the mean of
// `turns` round trips, and 0 on the other ranks. It shows how precise any time measured on this
// host can be.
double one_way_latency_ns(NodeGroup& group, unsigned turns, Poll* poll);

}  // namespace gradred
