#include "families/messages/agreement.h"

#include "base/errors.h"
#include "calls/family.h"
#include "calls/member.h"
#include "calls/plan_choice.h"
#include "calls/why_not.h"
#include "engine/driving.h"
#include "engine/notices/comm_liveness.h"
#include "engine/notices/operation_log.h"
#include "engine/waiting.h"
#include "families/memory/node_operation.h"
#include "families/memory/node_path.h"
#include "families/messages/path.h"
#include "families/messages/settling.h"
#include "liveness/status_page.h"

namespace gradred {

void Agreement::agree(const Signature& signature, WaitHook& hook) {
  if (parts_.member.size == 1) return;
  if (parts_.node_path.serves_all()) {
    parts_.node_path.agree(signature, hook);
  } else if (parts_.path != nullptr) {
    wait_for(*operation(signature, true), hook);
  }
}

std::shared_ptr<StartedOperation> Agreement::start(const Signature& signature) {
  return operation(signature, false);
}

std::shared_ptr<StartedOperation> Agreement::operation(const Signature& signature, bool waited) {
  const Call agreement{
      .waited = waited, .plan = plan_of_agreements(parts_.place), .agreement = signature};
  const std::shared_ptr<const Plan> chosen = parts_.choice.plan_for(agreement, true);
  return family_of(*chosen).operation(parts_, *chosen, agreement);
}

void Agreement::agree_on_init(const Call& call, WaitHook& hook) {
  Signature signature = planned_signature(call, *parts_.choice.plan_for(call, false));
  signature.detail = mix(signature.detail, std::string_view("init"));
  agree(signature, hook);
}

void Agreement::leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook) {
  if (parts_.member.node_only) {
    refuse(kMemoryOnly, hook);
    throw UsageError(std::string(kMemoryOnly));
  }
  agree(make_signature(Kind::kLeftToMpi, Op::kSum, DType::kUInt8, static_cast<std::uint64_t>(kind),
                       detail),
        hook);
}

// ---- refusals -----------------------------------------------------------------------------------

// A refused call over messages takes a number like any other call.
std::shared_ptr<Operation> Agreement::leave_refused(std::string_view reason) {
  const std::uint64_t number = parts_.operation_log.begin();
  post_begun(number | LastBegun::kOverMessages,
             make_signature(Kind::kAborted, Op::kSum, DType::kUInt8, 0));
  return leave_operation(
      parts_.owner.keep(parts_), number,
      parts_.liveness.own_name() + " refused its arguments: " + std::string(reason));
}

void Agreement::refuse(std::string_view reason, WaitHook& hook) {
  if (parts_.member.size == 1) return;
  if (parts_.node_path.serves_all()) {
    parts_.node_path.refuse(reason, hook);
  } else if (parts_.path != nullptr) {
    const auto settling = leave_refused(reason);
    const auto refusal = refuse_on_host(reason);
    // Without a progress thread that may do it, no other thread would receive what the peers have
    // sent.
    const bool threads = thread_may_drive();
    if (!threads) wait_for(*settling, hook);
    if (!threads && refusal != nullptr) wait_for(*refusal, hook);
  }
}

void Agreement::refuse_started(std::string_view reason) {
  if (parts_.member.size == 1 || !parts_.agreed.starts) return;  // the peers' calls went to the MPI
  if (!parts_.node_path.serves_all()) leave_refused(reason);
  refuse_on_host(reason);
}

// If ranks of this host share memory, each call begins in their node group.
std::shared_ptr<Operation> Agreement::refuse_on_host(std::string_view reason) {
  if (parts_.node_path.group() == nullptr) return nullptr;
  auto operation = enqueue(parts_.owner.keep(parts_.node_path), reason);
  if (!operation->advance()) let_drive(operation);
  return operation;
}

}  // namespace gradred
