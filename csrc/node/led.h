// Operations that one rank leads: the others announce their data and wait for one word, the
// leader's announcement, which it makes with the result. In between it may do what takes a while,
// and ask other hosts: the others sleep, and each is woken once.
//
// The leader, rank 0, announces when it has seen all, so who has seen its announcement may leave as
// if it had seen all (group.h).
#pragma once

#include "node/way.h"

namespace gradred {

class Led final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  // The leader's: what the others have announced, into recv; later its recv, to them.
  void take_charge(const NodeCall& call, DataPath path);
  void pass_on(const NodeCall& call, DataPath path);
  // The others': once the leader has announced.
  void take_passed_on(const NodeCall& call, DataPath path);
};

}  // namespace gradred
