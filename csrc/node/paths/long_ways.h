// Selects among the plans for long operations: by chunks, by reading peers' memory, or on devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "node/agreement/read_offer.h"
#include "node/paths/chunks.h"
#include "node/paths/device_way.h"
#include "node/paths/faster_way.h"
#include "node/paths/single_copy.h"
#include "node/paths/way.h"

namespace gradred {

// One rank, the decider, measures how long the plans take (faster_way.h). Its announcement says
// which plan all ranks use.
class LongWays final : public NodeWay {
 public:
  LongWays(NodeAgreement& group, PeerStores& stores);

  void announce(const NodeCall& call);

  // The functions from here to steps() require that all ranks have announced.
  bool all_on_devices(const NodeCall& call) const { return device_way_.all_are(call); }
  Steps on_devices(const NodeCall& call) { return device_way_.steps(call); }  // if all_on_devices()
  // Otherwise begin_measuring(), steps(), end_measuring(). begin_measuring() returns the present
  // time if this rank measures the operation, for end_measuring(); otherwise 0.
  std::uint64_t begin_measuring(const NodeCall& call) const;
  Steps steps(const NodeCall& call);
  void end_measuring(std::uint64_t begin);

  const Chunks& chunks() const { return chunks_; }
  SingleCopy& single_copy() { return single_copy_; }

 private:
  std::size_t decider(const NodeCall& call) const;
  bool measures(const NodeCall& call) const;
  void choose(const NodeCall& call, ReadOffer& offer);
  bool decided(const NodeCall& call, std::uint16_t what) const;
  bool reads(const NodeCall& call);

  Chunks chunks_;
  SingleCopy single_copy_;
  DeviceWay device_way_;
  std::unique_ptr<FasterWay> faster_way_;  // on the deciding rank only
  FasterWay::Calls chosen_for_;            // the current operation
  Way taken_ = Way::kChunks;               // the plan of the current operation
};

}  // namespace gradred
