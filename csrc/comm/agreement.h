// What the ranks of a communicator agree on before data move, and how a rank leaves a call on which
// they do not: one whose arguments were refused, or differ, tells its peers, and the communicator
// stays usable.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "comm/call.h"

namespace gradred {

class Communicator;
class Operation;

class Agreement {
 public:
  explicit Agreement(Communicator& comm) : comm_(comm) {}

  // Blocking: all ranks compare this.
  void agree(const Signature& signature, WaitHook& hook);
  // Blocking: on what a persistent call will be.
  void agree_on_init(const Call& call, WaitHook& hook);
  // Blocking: to leave this call to the MPI; `detail` is what else they compare.
  void leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook);

  // This rank's arguments of its next call were refused: the peers' calls fail with this reason.
  // The first for calls that block; the second for those that do not, and local as they are.
  void refuse(std::string_view reason, WaitHook& hook);
  void refuse_started(std::string_view reason);
  // This rank leaves an operation over messages without its result, and tells the peers why. The
  // operation that it returns has ended when nothing of that is left.
  std::shared_ptr<Operation> leave(std::uint64_t number, std::string_view reason);

 private:
  std::shared_ptr<Operation> leave_refused(std::string_view reason);
  std::shared_ptr<Operation> refuse_on_host(std::string_view reason);

  Communicator& comm_;
};

}  // namespace gradred
