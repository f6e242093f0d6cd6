#include "comm/staged_calls.h"

#include <sched.h>

#include <new>

#include "base/core.h"
#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/driving.h"
#include "comm/waiting.h"

namespace gradred {
namespace {

// Waits for the caller's device, and makes progress on everything else meanwhile. Short copies are
// done after a few looks.
template <class Ready>
void wait_for_device(Communicator& comm, WaitHook& hook, Ready ready) {
  constexpr unsigned kFewLooks = 8;
  for (unsigned looks = 0; !ready(); ++looks) {
    hook.waiting();
    if (looks < kFewLooks && !cores_are_shared()) continue;
    drive(comm.operation_log());
    sched_yield();
  }
}

bool flows(const Call& call, const Plan& plan) {
  return plan.family->flows(call) && Staging::is_long(call);
}

// Makes an operation of the call and waits for it: it stops where its input has not come yet.
void run_flowing(Communicator& comm, const Call& call, const Plan& plan, WaitHook& hook) {
  std::shared_ptr<Operation> operation;
  try {
    operation = staged_operation(comm, call, &plan, [&](const Call& made) {
      return plan.family->operation(comm, plan, made);
    });
  } catch (const Error& error) {
    comm.agreement().refuse(error.what(), hook);
    throw;
  } catch (const std::bad_alloc&) {
    comm.agreement().refuse("no host memory to stage its arrays in", hook);
    throw;
  }
  wait_for(*operation, hook);
}

}  // namespace

bool is_staged(const Call& call, const Plan& plan) {
  if (call.stream_order() != nullptr && !plan.family->keeps_streams()) return true;
  return !plan.family->reads(call);
}

void run_staged(Communicator& comm, const Call& call, const Plan& plan, WaitHook& hook) {
  const bool flowing = flows(call, plan);
  if (plan.family->shares_devices() &&
      (flowing || comm.device_workspace().find(call, plan) != nullptr)) {
    return run_flowing(comm, call, plan, hook);
  }
  std::shared_ptr<Staging> staging;
  try {
    staging = std::make_shared<Staging>(call, comm.rank(), comm.size(), flowing);
    if (!flowing) wait_for_device(comm, hook, [&] { return staging->input_is_there(); });
  } catch (const Error& error) {  // nothing of the call has begun
    comm.agreement().refuse(error.what(), hook);
    throw;
  } catch (const std::bad_alloc&) {
    comm.agreement().refuse("no host memory to stage its arrays in", hook);
    throw;
  }
  Call on_host = staging->on_host();
  on_host.order = flowing ? std::make_shared<const CallOrder>(CallOrder{.flow = staging}) : nullptr;
  try {
    plan.family->run(comm, plan, on_host, hook);
    staging->copy_result();
    wait_for_device(comm, hook, [&] { return staging->result_is_there(); });
  } catch (const UsageError&) {  // only copies of the call are left
    if (flowing) staging->abandon(true);
    throw;
  } catch (...) {
    staging->abandon(false);
    throw;
  }
}

std::shared_ptr<StartedOperation> staged_operation(Communicator& comm, const Call& call,
                                                   const Plan* plan,
                                                   const StagedOperation::Make& make) {
  if (plan == nullptr || plan->family->leaves_to_mpi()) {
    return std::make_shared<StagedOperation>(call, comm.rank(), comm.size(), make,
                                             StagedOperation::ReadsAtOnce());
  }
  Workspace* const workspace = comm.device_workspace().find(call, *plan);
  const bool flowing = workspace != nullptr || flows(call, *plan);
  return std::make_shared<StagedOperation>(call, comm.rank(), comm.size(), flowing, workspace,
                                           make);
}

std::string device_path(Communicator& comm) {
  std::string text = comm.device_workspace().text();
  if (comm.is_set_up() && !comm.node_path().serves_all()) {
    text = "host memory: not all ranks share memory: " + comm.place().why_no_memory;
  }
  text += comm.libraries().text();
  return text;
}

}  // namespace gradred
