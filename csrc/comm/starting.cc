// How calls that return at once are started.
#include <new>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/dispatch.h"
#include "comm/driving.h"
#include "comm/mpi_operation.h"
#include "comm/node_operation.h"
#include "comm/observation.h"
#include "comm/staged_calls.h"
#include "comm/started.h"

namespace gradred {

std::shared_ptr<StartedOperation> Dispatch::start(const Call& call,
                                                  const std::shared_ptr<Observation>& observation) {
  const InCall in_call(observation.get(), observation ? observation->start_ns() : 0);
  std::shared_ptr<StartedOperation> operation;
  try {
    operation = operation_for(call);
  } catch (const std::bad_alloc&) {
    comm_.agreement().refuse_started("no memory for its input times the factor");
    throw;
  }
  operation->observe(observation);
  const bool uses_mpi_request =
      call.mpi_request && !thread_may_drive() && operation->use_mpi_request();
  if (!uses_mpi_request) launch(operation, call);
  return operation;
}

// An operation that is complete when it starts needs neither the engine nor a request, unless it is
// persistent: then the MPI's functions show when the program has waited for it.
void Dispatch::launch(const std::shared_ptr<StartedOperation>& operation, const Call& call) {
  if (!operation->advance() || call.persistent) care_for(operation, call);
}

void Dispatch::care_for(const std::shared_ptr<StartedOperation>& operation, const Call& call) {
  try {
    const bool found_by_mpi =
        thread_may_drive() || (operation->may_advance_in_mpi() && completes_inside_mpi());
    if (call.mpi_request && found_by_mpi && mpi::initialized()) {
      operation->generalized_request().open(operation);
    }
    if (!operation->ended()) let_drive(operation);
  } catch (...) {  // it has its number: the peers would wait for it
    operation->abandon(std::current_exception());
    throw;
  }
}

std::shared_ptr<StartedOperation> Dispatch::operation_for(const Call& call) {
  std::shared_ptr<const Plan> plan;  // nullptr: the MPI carries the call out
  try {
    if (comm_.starts()) plan = comm_.choice().plan_for(call, false);
    if (comm_.size() > 1 && !comm_.is_set_up()) ++started_on_mpi_;
    if (plan) plan->family->check(comm_, call);
  } catch (const UsageError& error) {
    const std::string who_asks = comm_.choice().who_asks(call);
    const std::string objection = error.what() + who_asks;
    comm_.agreement().refuse_started(objection);
    if (who_asks.empty()) throw;
    throw UsageError(objection);
  }
  if (plan && !starts_by(*plan)) plan = nullptr;
  const auto make = [&](const Call& made) {
    return plan ? plan->family->operation(comm_, *plan, made) : mpi_operation(comm_, made);
  };
  if (plan ? !is_staged(call, *plan) : call.on_host()) return make(call);
  try {
    return staged_operation(comm_, call, plan.get(), make);
  } catch (const DeviceError& error) {  // from the copies, which come first
    comm_.agreement().refuse_started(error.what());
    throw;
  }
}

// ---- with nothing in flight ---------------------------------------------------------------------

std::shared_ptr<StartedOperation> Dispatch::start_short(const Call& call) {
  if (spare_ == nullptr) spare_ = std::make_shared<NodeOperation>(comm_.node_path());
  const NodeOperation::Alone alone = spare_->start_alone(call);
  if (alone == NodeOperation::Alone::kEndedWell) return nullptr;
  if (alone == NodeOperation::Alone::kTooLong) return comm_.start(call);
  const std::shared_ptr<NodeOperation> operation = std::move(spare_);
  operation->go_on(comm_.shared_node_path(), call);
  if (operation->ended()) return operation;  // it has failed
  comm_.node_path().queue().add(operation);
  care_for(operation, call);
  return operation;
}

}  // namespace gradred
