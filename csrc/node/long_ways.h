// Long operations: all ways that there are for them, and which one each goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "node/chunks.h"
#include "node/faster_way.h"
#include "node/on_devices.h"
#include "node/read_offer.h"
#include "node/single_copy.h"
#include "node/way.h"

namespace gradred {

// One rank measures what they take (faster_way.h), and says with its announcement which way it is
// to be.
class LongWays final : public NodeWay {
 public:
  LongWays(NodeGroup& group, PeerStores& stores);

  void announce(const NodeCall& call);

  // All have announced.
  bool all_on_devices(const NodeCall& call) const { return on_devices_.all_are(call); }
  Steps on_devices(const NodeCall& call) { return on_devices_.steps(call); }  // if so
  // Else. Now, if this rank measures what the operation takes, for end_measuring(); else 0.
  std::uint64_t begin_measuring(const NodeCall& call) const;
  Steps steps(const NodeCall& call);
  void end_measuring(std::uint64_t begin);

  SingleCopy& single_copy() { return single_copy_; }

 private:
  static std::size_t decider(const NodeCall& call);
  bool measures(const NodeCall& call) const;
  void choose(const NodeCall& call, ReadOffer& offer);
  bool decided(const NodeCall& call, std::uint16_t what) const;
  bool reads(const NodeCall& call);

  Chunks chunks_;
  SingleCopy single_copy_;
  OnDevices on_devices_;
  std::unique_ptr<FasterWay> faster_way_;  // of the rank that decides
  FasterWay::Calls chosen_for_;            // the operation under way
  Way taken_ = Way::kChunks;               // by it
};

}  // namespace gradred
