// How calls that return at once are started.
#include <new>

#include "base/errors.h"
#include "comm/dispatch.h"
#include "engine/driving.h"
#include "engine/notices/comm_liveness.h"
#include "engine/started.h"
#include "families/devices/staged_calls.h"
#include "families/memory/node_operation.h"
#include "families/messages/agreement.h"
#include "families/mpi/mpi_operation.h"
#include "observe/observation.h"

namespace gradred {

void Dispatch::throw_if_failed(const Call& call) const {
  parts_.liveness.throw_if_failed();
  // The call before may have failed while only a stream waited for it: its error is thrown here.
  if (call.stream_order() != nullptr && parts_.node_path.serves_all())
    parts_.node_path.node()->throw_if_poisoned();
}

std::shared_ptr<StartedOperation> Dispatch::start(const Call& call,
                                                  const std::shared_ptr<Observation>& observation) {
  const InCall in_call(observation.get(), observation ? observation->start_ns() : 0);
  std::shared_ptr<StartedOperation> operation;
  try {
    operation = operation_for(call);
  } catch (const std::bad_alloc&) {
    parts_.agreement.refuse_started("no memory for a copy of its input");
    throw;
  }
  operation->observe(observation);
  const bool uses_mpi_request =
      call.mpi_request && !thread_may_drive() && operation->use_mpi_request();
  if (!uses_mpi_request) launch(operation, call);
  return operation;
}

// An operation that ends well when it starts needs neither the engine nor a request of its own,
// unless it is persistent: then the MPI's functions show when the program has waited for it.
void Dispatch::launch(const std::shared_ptr<StartedOperation>& operation, const Call& call) {
  if (!operation->advance() || call.persistent || operation->failed()) care_for(operation, call);
}

void Dispatch::care_for(const std::shared_ptr<StartedOperation>& operation, const Call& call) {
  try {
    const bool found_by_mpi = operation->ended() || thread_may_drive() ||
                              (operation->may_advance_in_mpi() && completes_inside_mpi());
    if (call.mpi_request && found_by_mpi && mpi::initialized() && !driving_stopped()) {
      operation->generalized_request().open(operation);
    }
    if (!operation->ended()) let_drive(operation);
  } catch (...) {  // it has its number: the peers would wait for it
    operation->abandon(std::current_exception());
    throw;
  }
}

std::shared_ptr<StartedOperation> Dispatch::operation_for(const Call& call) {
  if (call.averages_integers()) return mean_operation(call);
  if (parts_.agreed.starts && parts_.agreed.threads_drive && is_gathered(call)) {
    return gathered_operation(call);
  }
  std::shared_ptr<const Plan> plan;  // nullptr: the MPI carries the call out
  try {
    if (parts_.agreed.starts) plan = parts_.choice.plan_for(call, false);
    if (parts_.member.size > 1 && !parts_.agreed.set_up) ++started_on_mpi_;
    if (plan) family_of(*plan).check(parts_, call);
  } catch (const UsageError& error) {
    const std::string who_asks = parts_.choice.who_asks(call);
    const std::string objection = error.what() + who_asks;
    parts_.agreement.refuse_started(objection);
    if (who_asks.empty()) throw;
    throw UsageError(objection);
  }
  if (plan && !starts_by(*plan)) plan = nullptr;
  const auto make = [&](const Call& made) {
    return plan ? family_of(*plan).operation(parts_, *plan, made) : mpi_operation(parts_, made);
  };
  if (plan ? !is_staged(call, *plan) : call.on_host()) return make(call);
  try {
    return staged_operation(parts_, call, plan.get(), make);
  } catch (const DeviceError& error) {  // from the copies, which come first
    parts_.agreement.refuse_started(error.what());
    throw;
  }
}

// ---- with nothing in flight ---------------------------------------------------------------------

std::shared_ptr<StartedOperation> Dispatch::start_short(const Call& call) {
  if (spare_ == nullptr) spare_ = std::make_shared<NodeOperation>(parts_.node_path);
  const NodeOperation::Alone alone = spare_->start_alone(call);
  if (alone == NodeOperation::Alone::kEndedWell) return nullptr;
  if (alone == NodeOperation::Alone::kTooLong) {
    throw_if_failed(call);
    return start(call, nullptr);
  }
  const std::shared_ptr<NodeOperation> operation = std::move(spare_);
  operation->go_on(parts_.owner.keep(parts_.node_path), call);
  if (!operation->ended()) parts_.node_path.queue().add(operation);  // else it has failed
  care_for(operation, call);
  return operation;
}

}  // namespace gradred
