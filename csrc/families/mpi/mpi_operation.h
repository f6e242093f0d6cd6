// Calls that the MPI carries out by its nonblocking functions, as operations that are watched like
// all others in flight.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "calls/call.h"
#include "calls/parts.h"
#include "engine/started.h"
#include "mpi/mpi.h"
#include "plan/plan.h"

namespace gradred {

// MPI counts are ints: longer vectors go in pieces, which elementwise operations allow.
inline constexpr std::size_t kLargestMpiCount = std::size_t{1} << 30;

// The operations of one communicator that may be in flight.
class OperationsOnMpi {
 public:
  void add(const std::shared_ptr<StartedOperation>& operation);
  // Blocking: waits until these have ended. Open MPI 5 crashes if a communicator is freed with a
  // nonblocking collective call in flight on it.
  void finish(WaitHook& hook);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<StartedOperation>> operations_;  // some may have ended
};

// Throws UsageError if the MPI must not carry out this started call. The ranks compare the call
// while it is in flight.
std::shared_ptr<StartedOperation> mpi_operation(const Parts& parts, const Call& call);
// Blocking: carries out the call once the ranks have agreed on it.
void run_agreed_on_mpi(const Parts& parts, const Call& call, const Plan& plan, WaitHook& hook);

// Whether the MPI takes addresses in device memory, as the settings or the MPI itself say.
bool mpi_reads_devices();
// Throws UsageError for calls that the MPI cannot serve.
void check_mpi_call(const Call& call);

}  // namespace gradred
