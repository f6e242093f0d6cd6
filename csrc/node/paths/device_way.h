// Collective operations within one host on arrays in device memory. The data pass piece by piece
// through workspace parts in device memory, which the devices of all ranks read. Host memory
// carries only progress counters.
//
// A part has room for three pieces. At time t a rank copies piece t of its input into its part and
// reduces its share of piece t - 1. It then copies piece t - 2 of the result out of the parts. Step
// t + 1 publishes that this work is done. Time t begins when all ranks have done step t. So piece t
// overwrites piece t - 3, which all ranks had copied out at time t - 1.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "node/agreement/read_offer.h"
#include "node/paths/steps.h"
#include "node/paths/way.h"

namespace gradred {

class Workspace;

class DeviceWay final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  static bool serves(Kind kind);
  // Called before this rank announces.
  static void offer(const DeviceCall& device, ReadOffer& offer);
  // Called after all ranks have announced. Returns whether all arrays are in device memory and the
  // devices are the best place to reduce them.
  bool all_are(const NodeCall& call) const;
  // Requires all_are(). After the last step, call.device->done says whether the operation was
  // carried out.
  Steps steps(NodeCall call);

 private:
  class Rest;
  struct Requested;
  struct Opened;

  ReadOffer offer_of(std::size_t rank) const { return ReadOffer::of(announcement(rank)); }
  bool any_says(std::uint16_t what) const;
  bool is_faster_on_host(const NodeCall& call) const;
  bool takes_arrays(const NodeCall& call) const;
  static Requested requested_by(const DeviceCall& device);
  void open(Workspace& workspace, std::size_t peer, const Requested& requested,
            Opened& found) const;
  Opened opened(Workspace& workspace) const;
  bool give(const NodeCall& call);
  void work_on_arrays(const NodeCall& call);

  std::uint64_t calls_ = 0;  // on arrays where they lie; the same on all ranks
  const std::shared_ptr<std::atomic<int>> rests_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace gradred
