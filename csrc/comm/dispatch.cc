#include "comm/dispatch.h"

#include "base/errors.h"
#include "engine/driving.h"
#include "engine/waiting.h"
#include "families/devices/staged_calls.h"
#include "families/messages/agreement.h"
#include "families/mpi/family_mpi.h"

namespace gradred {

// ---- blocking calls -------------------------------------------------------------------------

void Dispatch::run(const Call& call, WaitHook& hook) {
  if (call.averages_integers()) [[unlikely]] {
    return run_mean(call, hook, &Dispatch::run);
  }
  count_operation(hook);
  const PlanChoice& choice = parts_.choice;
  if (choice.takes_usual(call)) [[likely]] {
    const Plan& usual = *choice.usual();
    return family_of(usual).run(parts_, usual, call, hook);
  }
  if (is_gathered(call)) return run_gathered(call, hook);
  const std::shared_ptr<const Plan> plan = plan_or_refuse(call, hook);
  if (is_staged(call, *plan)) return run_staged(parts_, call, *plan, hook);
  family_of(*plan).run(parts_, *plan, call, hook);
}

// If this rank's call has no plan, the peers' calls fail with the same error.
std::shared_ptr<const Plan> Dispatch::plan_or_refuse(const Call& call, WaitHook& hook) {
  try {
    auto plan = parts_.choice.plan_for(call, true);
    family_of(*plan).check(parts_, call);
    return plan;
  } catch (const UsageError& error) {
    const std::string who_asks = parts_.choice.who_asks(call);
    const std::string objection = error.what() + who_asks;
    parts_.agreement.refuse(objection, hook);
    if (who_asks.empty()) throw;
    throw UsageError(objection);
  }
}

void Dispatch::run_startable(const Call& call, WaitHook& hook) {
  if (call.averages_integers()) [[unlikely]] {
    return run_mean(call, hook, &Dispatch::run_startable);
  }
  count_operation(hook);
  if (starts_on_node(call)) [[likely]] {
    return parts_.node_path.run(call, hook);
  }
  Call waited = call;
  waited.waited = true;
  wait_for(*operation_for(waited), hook);
}

// ---- what carries a call out ----------------------------------------------------------------

// Messages move by MPI calls, which the progress thread must be allowed to make.
bool Dispatch::starts_by(const Plan& plan) const {
  return parts_.agreed.starts &&
         (!family_of(plan).sends(parts_.place) || parts_.agreed.threads_drive);
}

bool Dispatch::keeps_streams(const Call& call) const {
  try {
    if (!parts_.agreed.starts || call.averages_integers() || is_gathered(call)) return false;
    const std::shared_ptr<const Plan> plan = parts_.choice.plan_for(call, false);
    return family_of(*plan).access(call) == ArrayAccess::kStreamOrder && starts_by(*plan);
  } catch (const UsageError&) {
    return false;
  }
}

const Family* Dispatch::family_for(const Call& call, bool started) const {
  if (started && !parts_.agreed.starts) return &mpi_family();
  try {
    const std::shared_ptr<const Plan> plan = parts_.choice.plan_for(call, !started);
    return !started || starts_by(*plan) ? &family_of(*plan) : &mpi_family();
  } catch (const UsageError&) {
    return nullptr;
  }
}

bool Dispatch::should_tell_of_mpi() {
  constexpr unsigned kMany = 16;  // a few may come before the first blocking call
  if (parts_.member.rank != 0 || reported_mpi_ || started_on_mpi_ < kMany) return false;
  reported_mpi_ = true;
  return true;
}

}  // namespace gradred
