// How the calls of a communicator are carried out, once all that they need is set up: each gets its
// plan, and the plan's family runs it or makes an operation of it. Observed calls come here from
// the observer.
#pragma once

#include <memory>

#include "comm/call.h"
#include "plan/plan.h"

namespace gradred {

class Communicator;
class NodeOperation;
class Observation;

class Dispatch {
 public:
  explicit Dispatch(Communicator& comm) : comm_(comm) {}

  // Blocking, as Communicator::run() and run_startable().
  void run(const Call& call, WaitHook& hook);
  void run_startable(const Call& call, WaitHook& hook);
  // As Communicator::start(); of `observation` null: nobody observes it.
  std::shared_ptr<StartedOperation> start(const Call& call,
                                          const std::shared_ptr<Observation>& observation);
  // Of a call that nobody observes: whether it can go ahead at once, and one that can. Null: it has
  // ended well.
  bool may_start_short(const Call& call) const;
  std::shared_ptr<StartedOperation> start_short(const Call& call);

  // Whether all ranks begin such a call in shared memory, started or not. Agreed.
  bool starts_on_node(const Call& call) const;
  // Whether operations by this plan that are started are gradred's own. Agreed.
  bool starts_by(const Plan& plan) const;
  // Whether the work of a call that starts is given to the stream in whose order it is.
  bool keeps_streams(const Call& call) const;
  // Who carries a call out; null where no plan can serve it.
  const Family* family_for(const Call& call, bool started) const;

  // Whether the program should be told now, and once, that the MPI carries out all that it starts,
  // and that ranks whose calls differ do not hear of it: no blocking call has come first. On rank
  // 0.
  bool should_tell_of_mpi();

 private:
  std::shared_ptr<const Plan> plan_or_refuse(const Call& call, WaitHook& hook);
  std::shared_ptr<StartedOperation> operation_for(const Call& call);
  void launch(const std::shared_ptr<StartedOperation>& operation, const Call& call);
  void care_for(const std::shared_ptr<StartedOperation>& operation, const Call& call);

  Communicator& comm_;
  std::shared_ptr<NodeOperation> spare_;  // for the next start_short()
  unsigned started_on_mpi_ = 0;           // before a blocking call has set up the rest
  bool told_of_mpi_ = false;
};

}  // namespace gradred
