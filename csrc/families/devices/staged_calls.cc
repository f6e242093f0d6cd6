#include "families/devices/staged_calls.h"

#include <sched.h>

#include <new>

#include "base/core.h"
#include "base/errors.h"
#include "calls/family.h"
#include "calls/member.h"
#include "engine/driving.h"
#include "engine/notices/operation_log.h"
#include "engine/waiting.h"
#include "families/devices/device_workspace.h"
#include "families/devices/library_operation.h"
#include "families/memory/node_path.h"
#include "families/messages/agreement.h"

namespace gradred {
namespace {

// Waits for the caller's device, and makes progress on everything else meanwhile. Short copies are
// done after a few looks.
template <class Ready>
void wait_for_device(const Parts& parts, WaitHook& hook, Ready ready) {
  constexpr unsigned kFewLooks = 8;
  for (unsigned looks = 0; !ready(); ++looks) {
    hook.waiting();
    if (looks < kFewLooks && !cores_are_shared()) continue;
    drive(parts.operation_log);
    sched_yield();
  }
}

bool flows(const Call& call, ArrayAccess access) {
  const bool in_pieces = access == ArrayAccess::kPieces || access == ArrayAccess::kDevices;
  return in_pieces && call.may_flow() && Staging::is_long(call);
}

// Makes an operation of the call and waits for it: it stops where its input has not come yet.
void run_flowing(const Parts& parts, const Call& call, const Plan& plan, WaitHook& hook) {
  std::shared_ptr<Operation> operation;
  try {
    operation = staged_operation(parts, call, &plan, [&](const Call& made) {
      return family_of(plan).operation(parts, plan, made);
    });
  } catch (const Error& error) {
    parts.agreement.refuse(error.what(), hook);
    throw;
  } catch (const std::bad_alloc&) {
    parts.agreement.refuse("no host memory to stage its arrays in", hook);
    throw;
  }
  wait_for(*operation, hook);
}

void run_on_copies(const Parts& parts, const Call& call, bool flowing, WaitHook& hook,
                   const RunOnHost& run) {
  std::shared_ptr<Staging> staging;
  try {
    staging = std::make_shared<Staging>(call, parts.member.rank, parts.member.size, flowing);
    if (!flowing) wait_for_device(parts, hook, [&] { return staging->input_is_there(); });
  } catch (const Error& error) {  // nothing of the call has begun
    parts.agreement.refuse(error.what(), hook);
    throw;
  } catch (const std::bad_alloc&) {
    parts.agreement.refuse("no host memory to stage its arrays in", hook);
    throw;
  }
  Call on_host = staging->on_host();
  on_host.order = flowing ? std::make_shared<const CallOrder>(CallOrder{.flow = staging}) : nullptr;
  try {
    run(on_host);
    staging->copy_result();
    wait_for_device(parts, hook, [&] { return staging->result_is_there(); });
  } catch (const UsageError&) {  // only copies of the call are left
    if (flowing) staging->abandon(true);
    throw;
  } catch (...) {
    staging->abandon(false);
    throw;
  }
}

}  // namespace

bool is_staged(const Call& call, const Plan& plan) {
  return works_on_copies(family_of(plan).access(call));
}

void run_staged(const Parts& parts, const Call& call, const Plan& plan, WaitHook& hook) {
  const ArrayAccess access = family_of(plan).access(call);
  const bool flowing = flows(call, access);
  if (access == ArrayAccess::kDevices &&
      (flowing || parts.device_workspace.find(call, access) != nullptr)) {
    return run_flowing(parts, call, plan, hook);
  }
  run_on_copies(parts, call, flowing, hook,
                [&](const Call& made) { family_of(plan).run(parts, plan, made, hook); });
}

void run_on_copies(const Parts& parts, const Call& call, WaitHook& hook, const RunOnHost& run) {
  run_on_copies(parts, call, false, hook, run);
}

std::shared_ptr<StartedOperation> staged_operation(const Parts& parts, const Call& call,
                                                   const Plan* plan,
                                                   const StagedOperation::Make& make) {
  const ArrayAccess access =
      plan == nullptr ? ArrayAccess::kCopiedBefore : family_of(*plan).access(call);
  if (access == ArrayAccess::kCopiedBefore) {
    return std::make_shared<StagedOperation>(call, parts.member.rank, parts.member.size, make,
                                             StagedOperation::ReadsAtOnce());
  }
  Workspace* const workspace = parts.device_workspace.find(call, access);
  const bool flowing = workspace != nullptr || flows(call, access);
  return std::make_shared<StagedOperation>(call, parts.member.rank, parts.member.size, flowing,
                                           workspace, make);
}

std::string device_path(const Parts& parts) {
  std::string text = parts.device_workspace.text();
  if (parts.agreed.set_up && !parts.node_path.serves_all()) {
    text = "host memory: not all ranks share memory: " + parts.place.why_no_memory;
  }
  text += parts.libraries.text();
  return text;
}

}  // namespace gradred
