// Operations of communicators over several hosts, where ranks share memory with those of their own
// host.
//
// Each of them begins on the host: its ranks announce it to each other in their node group, with
// the data if the plan is hierarchical. Why each, whatever its plan: a rank whose arguments are
// refused does not know what its peers have chosen, and says so where they all look.
//
// The group carries out one operation at a time, so those of a communicator stand in line, in the
// order of their numbers, which is the same on all ranks. All ranks of a host make the same
// operations of the group. One that is refused after it has begun, since ranks of other hosts do
// not agree, is refused again at the next of them that this rank has not announced: no rank can
// have ended that one, so all ranks leave at the same place.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "comm/comm_operation.h"
#include "node/execution.h"

namespace gradred {

class HostedOperation : public CommOperation {
 public:
  HostedOperation(std::shared_ptr<Communicator> comm, const Call& call, Plan plan);
  void begin(std::uint64_t number, const std::shared_ptr<CommOperation>& self) override;
  void bind(const Call& call) override;

  std::string waits_for() const override;

 protected:
  bool carry_out() override;  // a schedule over messages, once the host has agreed
  bool clear_away() override;
  void on_end(bool well) noexcept override;

  // One of the operations that it makes of the group, of which there are `operations_on_host_`;
  // true at its end, or where this rank leads it once it has the sums. At once where this rank is
  // alone on its host.
  bool on_host(const NodeCall& call);
  void pass_on();  // by the rank that leads it, which ends it
  // Whether messages are on their way, so that nobody may sleep until the host's ranks have come.
  virtual bool awaits_messages() const { return false; }
  NodeGroup* group() const { return comm_->node_path().group(); }

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
  bool under_way_ = false;  // on the host
  bool refusing_ = false;
  std::atomic<bool> in_line_{false};
  bool alone_ = false;  // there is no line, nor can there be one before it has ended
};

}  // namespace gradred
