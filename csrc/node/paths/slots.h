// The plan in which each rank publishes once: its data lie in its announcement or in a slot.
#pragma once

#include "node/paths/kind_way.h"
#include "node/paths/way.h"

namespace gradred {

class Slots final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  // Up to 48 bytes travel in the cache line of the announcement, in one transfer each way. Longer
  // inputs are in the slot before the announcement appears.
  void announce(const NodeCall& call, DataPath path);
  void take(const NodeCall& call, DataPath path);  // requires that all have announced the same

 private:
  // Allreduces through slots whose announcement by rank 0 says how ranks write from the next one
  // on.
  static bool chooses_stores(const NodeCall& call) {
    return call.kind == Kind::kAllreduce && !call.led && call.bytes() >= FasterStores::kLeast;
  }
  void announce_measured(const NodeCall& call, DataPath path);
  void reduce_measured(const NodeCall& call);
  void take_parts(const NodeCall& call, DataPath path);
  void take_blocks(const NodeCall& call, DataPath path);
  void take_splits(const NodeCall& call, DataPath path);

  std::uint64_t store_ns_ = 0;  // duration of the write, if it is measured
  KindWays own_ways_{group_, stores_};
};

}  // namespace gradred
