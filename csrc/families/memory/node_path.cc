#include "families/memory/node_path.h"

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/driving.h"
#include "families/memory/as_node_call.h"
#include "families/memory/scaling.h"
#include "liveness/watchdog.h"

namespace gradred {
namespace {

// Describes to Watchdog what a rank waits for in the node group.
struct AboutNode {
  const NodeGroup& node;

  WaitRecord record() const { return node.wait_record(); }
  std::string waiter() const { return node.own_name(); }
  std::string waits_for() const { return node.missing(); }
  bool reports() const { return node.is_first_to_wait(); }
};

// What a rank does while it waits for shared memory: MPI's progress rule holds.
class NodePoll final : public Poll {
 public:
  NodePoll(const NodeGroup& group, OperationLog& log, WaitHook& hook)
      : group_(group), log_(log), hook_(hook) {}
  void poll() override {
    hook_.waiting();
    drive(log_);
    watchdog_.check(AboutNode{group_});
  }

 private:
  const NodeGroup& group_;
  OperationLog& log_;
  WaitHook& hook_;
  Watchdog watchdog_;
};

}  // namespace

void NodePath::open(std::unique_ptr<NodeGroup> node, std::unique_ptr<NodeGroup> host, bool spins) {
  node_ = std::move(node);
  host_ = std::move(host);
  spins_ = spins;
}

void NodePath::run(const Call& call, WaitHook& hook) {
  finish_queue(hook);
  NodePoll poll(*group(), log_, hook);
  const std::size_t bytes = call.count * size_of(call.dtype);
  if (bytes > kLongWorkBytes) {
    hook.long_work();
    drive_if_due();
  }
  NodeCall made = node_call(call);
  std::vector<std::byte> scaled;
  try {
    if (call.op == Op::kPremul) made.send = scaled_input(call, node_->size(), scaled);
  } catch (const std::bad_alloc&) {
    node_->abort("no memory for its input times the factor", &poll);
    throw;
  }
  node_->run(made, &poll);
  settle_result(call, call.out.data, node_->rank(), node_->size());
}

void NodePath::agree(const Signature& signature, WaitHook& hook) {
  finish_queue(hook);
  NodePoll poll(*group(), log_, hook);
  group()->run({.signature = signature}, &poll);
}

void NodePath::refuse(std::string_view reason, WaitHook& hook) {
  finish_queue(hook);
  NodePoll poll(*group(), log_, hook);
  node_->abort(reason, &poll);
}

double NodePath::one_way_latency(WaitHook& hook, unsigned turns) {
  if (node_ == nullptr) return 0;
  finish_queue(hook);
  NodePoll poll(*group(), log_, hook);
  return 1e-9 * one_way_latency_ns(*node_, turns, &poll);
}

}  // namespace gradred
