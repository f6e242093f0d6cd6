// Calls of one communicator through the memory of a host: the group of its ranks there, which
// carries out one operation at a time, and the operations in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "calls/call.h"
#include "engine/notices/operation_log.h"
#include "families/memory/node_queue.h"
#include "node/group/group.h"

namespace gradred {

class NodePath {
 public:
  explicit NodePath(OperationLog& log) : log_(log) {}
  NodePath(const NodePath&) = delete;
  NodePath& operator=(const NodePath&) = delete;

  // Called once, in the set-up. `node`: the group of all ranks; `host`: over several hosts, the
  // group of this host's ranks; nullptr if there is none. `spins`: each rank of this host has a
  // core of its own.
  void open(std::unique_ptr<NodeGroup> node, std::unique_ptr<NodeGroup> host, bool spins);

  NodeGroup* node() const { return node_.get(); }  // nullptr: not all ranks share memory
  NodeGroup* host() const { return host_.get(); }  // also nullptr if this rank is alone there
  // The group of the ranks that share memory with this rank: one of the two; nullptr: none do.
  NodeGroup* group() const { return node_ != nullptr ? node_.get() : host_.get(); }
  bool serves_all() const { return node_ != nullptr; }
  bool spins() const { return spins_; }

  NodeQueue& queue() { return queue_; }
  // The number of the operation over messages on which the ranks have agreed. All ranks take the
  // numbers in the same order.
  std::uint64_t next_number() { return log_.begin(); }

  // Blocking, after the operations in flight. run() is for calls that all ranks make.
  void run(const Call& call, WaitHook& hook);
  void agree(const Signature& signature, WaitHook& hook);  // no data move: the ranks compare this
  void refuse(std::string_view reason, WaitHook& hook);    // this rank's arguments were refused
  // Seconds that a flag takes between the cores of rank 0 and rank 1; 0 on other ranks.
  double one_way_latency(WaitHook& hook, unsigned turns);

 private:
  void finish_queue(WaitHook& hook) {
    if (queue_.any()) [[unlikely]] {
      queue_.finish(hook);
    }
  }

  OperationLog& log_;
  std::unique_ptr<NodeGroup> node_;
  std::unique_ptr<NodeGroup> host_;
  bool spins_ = false;
  NodeQueue queue_;  // of the operations of either group
};

}  // namespace gradred
