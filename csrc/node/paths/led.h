// Operations with a leader: the other ranks announce their data and wait for one counter, the
// leader's announcement, which comes with the result. Meanwhile the leader may do slow work, for
// example exchange data with other hosts. The other ranks sleep, and each is woken once.
//
// The leader, rank 0, announces after it has seen all other announcements. So a rank that has seen
// the leader's announcement may leave as if it had seen all (group.h).
#pragma once

#include "node/paths/way.h"

namespace gradred {

class Led final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  // Called on the leader. take_charge() takes what the others have announced into recv; pass_on()
  // later sends the content of recv to them.
  void take_charge(const NodeCall& call, DataPath path);
  void pass_on(const NodeCall& call, DataPath path);
  // Called on the other ranks, once the leader has announced.
  void take_passed_on(const NodeCall& call, DataPath path);
};

}  // namespace gradred
