// Selects the data path of a node group's operation from its size and arguments.
#pragma once

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
  void announce(const NodeCall& call, DataPath path);

  Slots& slots() { return slots_; }  // also for data in announcements
  Led& led() { return led_; }
  LongWays& long_ways() { return long_ways_; }
  const PeerStores& stores() const { return stores_; }

  void forget_peers() noexcept { long_ways_.single_copy().forget_peers(); }

 private:
  NodeAgreement& group_;
  const std::size_t size_;
  PeerStores stores_;
  Slots slots_;
  Led led_;
  LongWays long_ways_;
};

}  // namespace gradred
