// The plans of kinds of calls that have a file of their own in this folder. Slots and Chunks serve
// the other kinds.
#pragma once

#include <array>
#include <memory>

#include "base/kinds.h"
#include "node/paths/steps.h"
#include "node/paths/way.h"

namespace gradred {

class KindWay : public NodeWay {
 public:
  using NodeWay::NodeWay;
  virtual ~KindWay() = default;

  // Both require that all ranks have announced the operation. take(): the data lie in the
  // announcements or in slots. steps(): they pass through shared memory chunk by chunk, and
  // PeerStores has begun.
  virtual void take(const NodeCall& call, DataPath path) = 0;
  virtual Steps steps(const NodeCall& call) = 0;
};

// Throws Error if no file serves the kind.
std::unique_ptr<KindWay> make_kind_way(Kind kind, NodeAgreement& group, PeerStores& stores);

// Made when they are needed. The owner keeps the group and the stores alive as long as this object.
class KindWays {
 public:
  KindWays(NodeAgreement& group, PeerStores& stores) : group_(group), stores_(stores) {}

  KindWay& of(Kind kind) {
    std::unique_ptr<KindWay>& way = ways_[static_cast<std::size_t>(kind)];
    if (way == nullptr) way = make_kind_way(kind, group_, stores_);
    return *way;
  }

 private:
  NodeAgreement& group_;
  PeerStores& stores_;
  std::array<std::unique_ptr<KindWay>, kCalledKinds> ways_;
};

}  // namespace gradred
