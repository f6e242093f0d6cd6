// Calls that return at once, and operations over messages with their numbers.
#include <new>

#include "comm/comm_operation.h"
#include "comm/communicator.h"
#include "comm/driving.h"
#include "comm/hierarchical.h"
#include "comm/hosted.h"
#include "comm/node_operation.h"
#include "comm/started.h"
#include "liveness/status_page.h"

namespace gradred {

bool may_be_driven_by_thread(const Operation& operation) {
  return operation.needs_no_mpi() ? settings().progress_thread : thread_may_drive();
}

void let_drive(std::shared_ptr<Operation> operation) {
  const bool may = may_be_driven_by_thread(*operation);
  engine().add(std::move(operation), may ? Engine::Driven::kByThread : Engine::Driven::kByCalls);
}

template <class Made>
std::shared_ptr<CommOperation> Communicator::begin_operation(const Call& call, const Plan& plan,
                                                             bool waited) {
  const Call planned = gradred::planned(call, plan);
  auto operation = waited ? kept_.find(planned) : nullptr;
  if (operation != nullptr) {
    operation->bind(planned);
  } else if (waited) {
    // It is the communicator's, and does not keep it.
    std::shared_ptr<Communicator> self(std::shared_ptr<Communicator>(), this);
    operation = std::make_shared<Made>(std::move(self), planned, plan);
    operation->be_kept();
    kept_.add(operation);
  } else {
    operation = std::make_shared<Made>(shared_from_this(), planned, plan);
  }
  operation->begin(operation_log_.begin(), operation);
  return operation;
}
template std::shared_ptr<CommOperation> Communicator::begin_operation<HierarchicalOperation>(
    const Call&, const Plan&, bool);

std::shared_ptr<CommOperation> Communicator::operation(const Call& call, const Plan& plan,
                                                       bool waited) {
  return host_ == nullptr ? begin_operation<CommOperation>(call, plan, waited)
                          : begin_operation<HostedOperation>(call, plan, waited);
}

// The ranks of a host agree on it first.
std::shared_ptr<StartedOperation> Communicator::scheduled_operation(const Call& call,
                                                                    const Plan& plan) {
  if (node_ == nullptr) return operation(call, plan, call.waited);
  const Call planned = gradred::planned(call, plan);
  return std::make_shared<CommOperation>(shared_from_this(), planned, plan,
                                         enqueue(planned.signature()));
}

std::shared_ptr<StartedOperation> Communicator::start(const Call& call) {
  liveness_.throw_if_failed();
  // What has ended the one before, for which only a stream has waited.
  if (call.order() != nullptr && node_ != nullptr) node_->throw_if_poisoned();
  const std::shared_ptr<Observation> observation = direct_ ? nullptr : observer_.observation(call);
  const InCall in_call(observation.get(), observation ? observation->start_ns() : 0);
  std::shared_ptr<StartedOperation> operation;
  try {
    operation = operation_for(call);
  } catch (const std::bad_alloc&) {
    refuse_started("no memory for its input times the factor");
    throw;
  }
  operation->observe(observation);
  const bool uses_mpi_request =
      call.mpi_request && !thread_may_drive() && operation->use_mpi_request();
  if (!uses_mpi_request) launch(operation, call);
  return operation;
}

// One that is complete when it starts needs neither the engine nor a request, unless it is
// persistent: then the MPI's functions tell when the program has waited for it.
void Communicator::launch(const std::shared_ptr<StartedOperation>& operation, const Call& call) {
  if (!operation->advance() || call.persistent) care_for(operation, call);
}

void Communicator::care_for(const std::shared_ptr<StartedOperation>& operation, const Call& call) {
  try {
    const bool found_by_mpi =
        thread_may_drive() || (operation->may_advance_in_mpi() && completes_inside_mpi());
    if (call.mpi_request && found_by_mpi && mpi::initialized()) operation->open_request(operation);
    if (!operation->ended()) return let_drive(operation);
    operation->complete_request();
  } catch (...) {  // it has its number: the peers would wait for it
    operation->abandon(std::current_exception());
    throw;
  }
}

std::shared_ptr<StartedOperation> Communicator::operation_for(const Call& call) {
  std::shared_ptr<const Plan> plan;  // null: the MPI carries it out
  try {
    if (starts()) plan = plan_for(call, false);
    if (size_ > 1 && !blocking_set_up_) ++started_on_mpi_;
    if (plan) plan->family->check(*this, call);
  } catch (const UsageError& error) {
    refuse_started(error.what());
    throw;
  }
  if (plan && !starts_by(*plan)) plan = nullptr;
  const auto make = [&](const Call& made) {
    return plan ? plan->family->operation(*this, *plan, made) : mpi_operation(made);
  };
  if (plan ? !is_staged(call, *plan) : call.on_host()) return make(call);
  try {
    return staged_operation(call, plan.get(), make);
  } catch (const DeviceError& error) {  // of the copies, which come first
    refuse_started(error.what());
    throw;
  }
}

}  // namespace gradred
