// Decides how each call of a communicator is carried out, once all that calls need is set up. The
// plan's family runs the call or makes an operation of it. Some calls that return at once are left
// to the MPI instead. The observer passes observed calls on to this class.
#pragma once

#include <memory>

#include "calls/call.h"
#include "calls/family.h"
#include "calls/member.h"
#include "calls/parts.h"
#include "calls/plan_choice.h"
#include "engine/notices/operation_log.h"
#include "families/memory/node_path.h"

namespace gradred {

class Carried;
class NodeOperation;
class Observation;

class Dispatch {
 public:
  explicit Dispatch(const Parts& parts) : parts_(parts) {}

  // Blocking, as Communicator::run() and run_startable().
  void run(const Call& call, WaitHook& hook);
  void run_startable(const Call& call, WaitHook& hook);
  // As Communicator::start(). `observation`: nullptr if the call is not observed.
  // throw_if_failed() comes first.
  std::shared_ptr<StartedOperation> start(const Call& call,
                                          const std::shared_ptr<Observation>& observation);
  // Throws the error that ended the communicator, if it is known.
  void throw_if_failed(const Call& call) const;
  // For calls that are not observed: whether the call can go ahead at once, and the start of such a
  // call, which returns nullptr if the call has ended well.
  bool may_start_short(const Call& call) const;
  std::shared_ptr<StartedOperation> start_short(const Call& call);

  // Whether all ranks begin such a call in shared memory, whether they start it or block in it. The
  // ranks agree on the answer.
  bool starts_on_node(const Call& call) const;
  // Whether gradred itself carries out started calls by this plan. The ranks agree on the answer.
  bool starts_by(const Plan& plan) const;
  // Whether the work of a started call is given to the stream that determines the call's order.
  bool keeps_streams(const Call& call) const;
  // The family that carries a call out; nullptr if no plan can serve it.
  const Family* family_for(const Call& call, bool started) const;

  // Whether to warn the program now, on rank 0 and only once. Without a blocking call first, the
  // MPI carries out all that the program starts, and ranks whose calls differ do not learn of it.
  bool should_tell_of_mpi();

 private:
  std::shared_ptr<const Plan> plan_or_refuse(const Call& call, WaitHook& hook);
  std::shared_ptr<StartedOperation> operation_for(const Call& call);
  // Short calls over messages that not all ranks need, carried out as allgathers
  // (carried_calls.cc).
  bool is_gathered(const Call& call) const;
  void run_gathered(const Call& call, WaitHook& hook);
  std::shared_ptr<StartedOperation> gathered_operation(const Call& call);
  using Carry = std::unique_ptr<Carried> (*)(const Call& call, const Parts& parts);
  std::shared_ptr<StartedOperation> carried_operation(const Call& call, Carry carry);
  // Means of integers, which are carried out as sums of words (carried_calls.cc).
  using Run = void (Dispatch::*)(const Call&, WaitHook&);
  void run_mean(const Call& call, WaitHook& hook, Run run);
  std::shared_ptr<StartedOperation> mean_operation(const Call& call);
  void check_plan_of_mean(const Call& call) const;
  void launch(const std::shared_ptr<StartedOperation>& operation, const Call& call);
  void care_for(const std::shared_ptr<StartedOperation>& operation, const Call& call);

  const Parts parts_;                              // not a reference: short calls look into it
  std::shared_ptr<NodeOperation> spare_;           // reused by the next start_short()
  std::unique_ptr<std::byte[]> memory_to_gather_;  // of a short call over messages
  unsigned started_on_mpi_ = 0;                    // before a blocking call has set up the rest
  bool reported_mpi_ = false;
};

// ---- inline, because short calls pass through it ------------------------------------------------

inline bool Dispatch::starts_on_node(const Call& call) const {
  return parts_.choice.takes_usual(call) && parts_.node_path.serves_all() &&
         parts_.agreed.starts_in_memory;
}

inline bool Dispatch::may_start_short(const Call& call) const {
  return starts_on_node(call) && call.op != Op::kPremul && !call.averages_integers() &&
         !parts_.node_path.queue().any() && !parts_.operation_log.has_failed();
}

}  // namespace gradred
