// Selects the data path of a node group's operation from its size and arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "node/agreement/flag_tree.h"
#include "node/paths/led.h"
#include "node/paths/long_ways.h"
#include "node/paths/slots.h"
#include "node/paths/stores.h"

namespace gradred {

class NodeWays {
 public:
  explicit NodeWays(NodeAgreement& group);

  void run(const NodeCall& call, Poll* poll);  // implements NodeGroup::run()

  // The path of the operation that this rank has entered. It is the same on all ranks if their
  // signatures agree.
  DataPath path_of(const NodeCall& call) const;
  // The same for an operation in steps, which reads the announcements themselves: no rank advances
  // while its program computes, so that none may wait for what another one gathers.
  DataPath path_in_steps(const NodeCall& call) const {
    const DataPath path = path_of(call);
    return path == DataPath::kInTree ? DataPath::kInLine : path;
  }
  // Before data are written to a slot; announce() does this, too.
  void place(const NodeCall& call, DataPath path);
  void announce(const NodeCall& call, DataPath path);

  // Divides the ranks anew for the tree of flags, if the group has one.
  void divide(std::span<const std::uint32_t> cache_groups);
  const FlagTree* tree() const { return tree_.get(); }

  Slots& slots() { return slots_; }  // also for data in announcements
  Led& led() { return led_; }
  LongWays& long_ways() { return long_ways_; }
  const PeerStores& stores() const { return stores_; }

  void forget_peers() noexcept { long_ways_.single_copy().forget_peers(); }

 private:
  std::size_t slot_bytes(const NodeCall& call) const;  // alike on all ranks
  void run_in_steps(const NodeCall& call);
  void run_in_tree(const NodeCall& call);

  NodeAgreement& group_;
  const std::size_t size_;
  const std::size_t in_line_end_;  // fewer bytes go in the announcements, without the tree
  std::unique_ptr<FlagTree> tree_;
  PeerStores stores_;
  Slots slots_;
  Led led_;
  LongWays long_ways_;
};

}  // namespace gradred
