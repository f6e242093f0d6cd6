// Collective operations within one host on arrays in devices' memory, piece by piece through parts
// of it that all ranks' devices read: nothing but words about how far they are goes through the
// host's.
//
// A part has room for three pieces. At time t a rank copies piece t of its input into its part,
// reduces its share of piece t - 1, and copies piece t - 2 of the result out of the parts. Step t +
// 1 says that all of that is done; time t begins when all ranks have done step t. So a piece is put
// where piece t - 3 was, which all had copied at time t - 1.
#pragma once

#include <cstddef>

#include "node/read_offer.h"
#include "node/steps.h"
#include "node/way.h"

namespace gradred {

class Workspace;

class OnDevices final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  // Before this rank announces.
  static void offer(const DeviceCall& device, ReadOffer& offer);
  // All have announced: whether the arrays of all are on devices, and best reduced there.
  bool all_are(const NodeCall& call) const;
  // If so. Afterwards the call's device says whether it has been done.
  Steps steps(NodeCall call);

 private:
  struct Told;
  struct Opened;

  ReadOffer offer_of(std::size_t rank) const { return ReadOffer::of(announcement(rank)); }
  bool any_says(std::uint16_t what) const;
  bool is_faster_on_host(const NodeCall& call) const;
  bool takes_arrays(const NodeCall& call) const;
  static Told told_by(const DeviceCall& device);
  void open(Workspace& workspace, std::size_t peer, const Told& told, Opened& found) const;
  Opened opened(Workspace& workspace) const;
  void work_on_arrays(const NodeCall& call);
};

}  // namespace gradred
