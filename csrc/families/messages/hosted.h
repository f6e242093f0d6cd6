// Operations of communicators over several hosts, if the ranks of each host share memory.
//
// Each operation begins on the host: its ranks announce it to each other in their node group,
// together with the data if the plan is hierarchical. This is so for every plan, because a rank
// whose arguments are refused does not know what plan its peers have chosen, and refuses in the
// place where they all look.
//
// The group carries out one operation at a time, so those of a communicator wait in a queue, in the
// order of their numbers, which is the same on all ranks. All ranks of a host make the same
// operations of the group. An operation may be refused after it has begun, because ranks of other
// hosts do not agree. This rank then refuses it again at the next operation of the group that it
// has not announced. No rank can have ended that one, so all ranks leave at the same point.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "families/messages/comm_operation.h"
#include "node/group/node_execution.h"

namespace gradred {

class HostedOperation : public CommOperation {
 public:
  HostedOperation(std::shared_ptr<const MessageParts> parts, const Call& call, Plan plan);
  void begin(std::uint64_t number, const std::shared_ptr<CommOperation>& self) override;
  void bind(const Call& call) override;

  std::string waits_for() const override;

 protected:
  bool carry_out() override;  // a schedule over messages, once the host has agreed
  bool clear_away() override;
  void on_end(bool well) noexcept override;

  // Carries out one of the operations that it makes of the group, of which there are
  // `operations_on_host_`. Returns true when it has ended, or, if this rank leads it, when this
  // rank has the sums. Returns true at once if this rank is alone on its host.
  bool on_host(const NodeCall& call);
  // For the rank that leads the operation: passes the result on, which ends the operation.
  void pass_on();
  // Whether messages are in flight, so that no thread may sleep until the host's ranks have come.
  virtual bool awaits_messages() const { return false; }
  NodeGroup* group() const { return parts_->node_path.group(); }

  unsigned operations_on_host_ = 1;

 private:
  void stand_in_line(const std::shared_ptr<CommOperation>& self);
  bool is_its_turn();
  bool advance_on_host();
  bool leave_host();
  void await_host();
  void end_on_host();
  void step_out_of_line() noexcept;

  std::optional<NodeExecution> execution_;
  unsigned done_on_host_ = 0;
  bool under_way_ = false;  // an operation of the group has begun
  bool refusing_ = false;
  std::atomic<bool> in_line_{false};
  bool alone_ = false;  // the queue is empty, and stays empty until this operation has ended
};

}  // namespace gradred
