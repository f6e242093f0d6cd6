#include "families/messages/message_operations.h"

#include <new>
#include <utility>

#include "calls/plan_choice.h"
#include "engine/notices/operation_log.h"
#include "engine/waiting.h"
#include "families/memory/node_operation.h"
#include "families/memory/node_path.h"
#include "families/messages/agreement.h"
#include "families/messages/comm_operation.h"
#include "families/messages/hierarchical.h"
#include "families/messages/hosted.h"

namespace gradred {

template <class Made>
std::shared_ptr<CommOperation> MessageOperations::begin(const Call& call, const Plan& plan,
                                                        bool waited) {
  const Call planned = gradred::planned(call, plan);
  auto operation = waited ? kept_.find(planned) : nullptr;
  if (operation != nullptr) {
    operation->bind(planned);
  } else if (waited) {
    // The communicator owns the operation, so the operation must not keep the communicator alive.
    std::shared_ptr<const MessageParts> parts(std::shared_ptr<const MessageParts>(), &parts_);
    operation = std::make_shared<Made>(std::move(parts), planned, plan);
    operation->be_kept();
    kept_.add(operation);
  } else {
    operation = std::make_shared<Made>(parts_.owner.keep(parts_), planned, plan);
  }
  operation->begin(parts_.operation_log.begin(), operation);
  return operation;
}

std::shared_ptr<CommOperation> MessageOperations::begin_schedule(const Call& call, const Plan& plan,
                                                                 bool waited) {
  return parts_.node_path.host() == nullptr ? begin<CommOperation>(call, plan, waited)
                                            : begin<HostedOperation>(call, plan, waited);
}

void MessageOperations::run(const Call& call, const Plan& plan, WaitHook& hook) {
  // If some ranks receive nothing from some peers, the ranks agree before they begin.
  if (parts_.node_path.serves_all() || !needs_all_ranks(call.kind)) {
    agreement_.agree(planned_signature(call, plan), hook);
  }
  if (call.count * size_of(call.dtype) > kLongWorkBytes) hook.long_work();
  wait_for(*begin_schedule(call, plan, true), hook);
}

std::shared_ptr<CommOperation> MessageOperations::start(const Call& call, const Plan& plan) {
  if (!parts_.node_path.serves_all()) {
    // If some ranks receive nothing from some peers, the ranks agree first. Broadcasts are started
    // by named operations, whose ranks have agreed.
    const bool agrees = !needs_all_ranks(call.kind) && call.kind != Kind::kBcast;
    auto agreement = agrees ? agreement_.start(planned_signature(call, plan)) : nullptr;
    auto operation = begin_schedule(call, plan, call.waited);
    if (agrees) operation->begin_after(std::move(agreement));
    return operation;
  }
  const Call planned = gradred::planned(call, plan);
  return std::make_shared<CommOperation>(
      parts_.owner.keep(parts_), planned, plan,
      enqueue(parts_.owner.keep(parts_.node_path), planned.signature()));
}

void MessageOperations::run_hierarchical(const Call& call, const Plan& plan, WaitHook& hook) {
  if (!needs_all_ranks(call.kind)) agreement_.agree(planned_signature(call, plan), hook);
  if (call.count * size_of(call.dtype) > kLongWorkBytes) hook.long_work();
  std::shared_ptr<Operation> operation;
  try {
    operation = begin<HierarchicalOperation>(call, plan, true);
  } catch (const std::bad_alloc&) {
    agreement_.refuse("no memory for its input times the factor", hook);
    throw;
  }
  wait_for(*operation, hook);
}

std::shared_ptr<CommOperation> MessageOperations::start_hierarchical(const Call& call,
                                                                     const Plan& plan) {
  return begin<HierarchicalOperation>(call, plan, call.waited);
}

}  // namespace gradred
