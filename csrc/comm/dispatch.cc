#include "comm/dispatch.h"

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/device_plans.h"
#include "comm/driving.h"
#include "comm/families.h"
#include "comm/staged_calls.h"
#include "comm/waiting.h"

namespace gradred {

// ---- blocking calls -------------------------------------------------------------------------

void Dispatch::run(const Call& call, WaitHook& hook) {
  count_operation(hook);
  PlanChoice& choice = comm_.choice();
  if (choice.takes_usual(call)) [[likely]] {
    const Plan& usual = *choice.usual();
    return usual.family->run(comm_, usual, call, hook);
  }
  if (choice.measures_devices() && !choice.device_plans.tried() && !call.out.memory.is_host() &&
      call.plan == nullptr && comm_.size() > 1) {
    measure_device_plans(comm_, call.out.memory, hook);
  }
  const std::shared_ptr<const Plan> plan = plan_or_refuse(call, hook);
  if (is_staged(call, *plan)) return run_staged(comm_, call, *plan, hook);
  plan->family->run(comm_, *plan, call, hook);
}

// If this rank's call has no plan, the peers' calls fail with the same error.
std::shared_ptr<const Plan> Dispatch::plan_or_refuse(const Call& call, WaitHook& hook) {
  try {
    auto plan = comm_.choice().plan_for(call, true);
    plan->family->check(comm_, call);
    return plan;
  } catch (const UsageError& error) {
    const std::string who_asks = comm_.choice().who_asks(call);
    const std::string objection = error.what() + who_asks;
    comm_.agreement().refuse(objection, hook);
    if (who_asks.empty()) throw;
    throw UsageError(objection);
  }
}

void Dispatch::run_startable(const Call& call, WaitHook& hook) {
  count_operation(hook);
  if (starts_on_node(call)) [[likely]] {
    return comm_.node_path().run(call, hook);
  }
  Call waited = call;
  waited.waited = true;
  wait_for(*operation_for(waited), hook);
}

// ---- what carries a call out ----------------------------------------------------------------

// Messages move by MPI calls, which the progress thread must be allowed to make.
bool Dispatch::starts_by(const Plan& plan) const {
  return comm_.starts() && (!plan.family->sends(comm_.place()) || comm_.threads_drive());
}

bool Dispatch::keeps_streams(const Call& call) const {
  try {
    if (!comm_.starts()) return false;
    const std::shared_ptr<const Plan> plan = comm_.choice().plan_for(call, false);
    return plan->family->keeps_streams() && starts_by(*plan);
  } catch (const UsageError&) {
    return false;
  }
}

const Family* Dispatch::family_for(const Call& call, bool started) const {
  if (started && !comm_.starts()) return &mpi_family();
  try {
    const std::shared_ptr<const Plan> plan = comm_.choice().plan_for(call, !started);
    return !started || starts_by(*plan) ? plan->family : &mpi_family();
  } catch (const UsageError&) {
    return nullptr;
  }
}

bool Dispatch::should_tell_of_mpi() {
  constexpr unsigned kMany = 16;  // a few may come before the first blocking call
  if (comm_.rank() != 0 || told_of_mpi_ || started_on_mpi_ < kMany) return false;
  told_of_mpi_ = true;
  return true;
}

}  // namespace gradred
