// The operations of one communicator over messages. Each gets the next number, and operations of
// blocking calls are cached (kept_operations.h).
#pragma once

#include <memory>

#include "calls/call.h"
#include "calls/parts.h"
#include "families/messages/kept_operations.h"
#include "plan/plan.h"

namespace gradred {

class CommOperation;

class MessageOperations {
 public:
  MessageOperations(const MessageParts& parts, Agreement& agreement)
      : parts_(parts), agreement_(agreement) {}

  // Calls that a schedule carries out. The ranks of a host first agree on the call.
  void run(const Call& call, const Plan& plan, WaitHook& hook);
  std::shared_ptr<CommOperation> start(const Call& call, const Plan& plan);
  // The same for calls whose data go through the memory of hosts, and between hosts by a schedule.
  void run_hierarchical(const Call& call, const Plan& plan, WaitHook& hook);
  std::shared_ptr<CommOperation> start_hierarchical(const Call& call, const Plan& plan);

 private:
  // `waited`: as Call::waited.
  std::shared_ptr<CommOperation> begin_schedule(const Call& call, const Plan& plan, bool waited);
  template <class Made>
  std::shared_ptr<CommOperation> begin(const Call& call, const Plan& plan, bool waited);

  const MessageParts& parts_;
  Agreement& agreement_;
  KeptOperations kept_;
};

}  // namespace gradred
