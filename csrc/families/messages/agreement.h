// What the ranks of a communicator agree on before data move, and how a rank leaves a call on which
// they do not agree. A rank whose arguments were refused, or differ, notifies its peers, and the
// communicator stays usable.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "calls/call.h"
#include "calls/parts.h"

namespace gradred {

class Operation;
class StartedOperation;

class Agreement {
 public:
  explicit Agreement(const Parts& parts) : parts_(parts) {}

  // All of these are for communicators that are set up.

  // Blocks until all ranks have compared `signature`.
  void agree(const Signature& signature, WaitHook& hook);
  // Local: starts that comparison over messages.
  std::shared_ptr<StartedOperation> start(const Signature& signature);
  // Blocks until all ranks have compared a persistent call, when it is made.
  void agree_on_init(const Call& call, WaitHook& hook);
  // Blocking: the ranks agree to leave this call to the MPI. `detail`: hash of what else they
  // compare.
  void leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook);

  // For a rank whose arguments of the next call were refused: the peers' calls fail with this
  // reason. refuse() is for calls that block. refuse_started() is for calls that do not block, and
  // is local like them.
  void refuse(std::string_view reason, WaitHook& hook);
  void refuse_started(std::string_view reason);

 private:
  std::shared_ptr<StartedOperation> operation(const Signature& signature, bool waited);
  std::shared_ptr<Operation> leave_refused(std::string_view reason);
  std::shared_ptr<Operation> refuse_on_host(std::string_view reason);

  const Parts& parts_;
};

}  // namespace gradred
