// Calls that the MPI carries out: by its non-blocking functions, looked after like all that is in
// flight, or by its blocking ones, to be compared with.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "comm/call.h"
#include "mpi/mpi.h"
#include "plan/plan.h"

namespace gradred {

class Communicator;

// Those of one communicator that may be in flight.
class OperationsOnMpi {
 public:
  void add(const std::shared_ptr<StartedOperation>& operation);
  // Blocking: until those have ended. Open MPI 5 crashes where a communicator is freed with a
  // non-blocking collective call in flight on it.
  void finish(WaitHook& hook);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<StartedOperation>> operations_;  // some may have ended
};

// Throws UsageError where the MPI must not carry out what is started. The ranks compare the call
// while it goes on.
std::shared_ptr<StartedOperation> mpi_operation(Communicator& comm, const Call& call);
// Blocking: once the ranks have agreed on the call.
void run_agreed_on_mpi(Communicator& comm, const Call& call, const Plan& plan, WaitHook& hook);
// Blocking: the MPI's own call on `comm` of so many ranks.
void run_on_mpi(const Call& call, int size, mpi::Handle comm);

// Throws UsageError for what the MPI does not serve.
void check_mpi_call(const Call& call);

}  // namespace gradred
