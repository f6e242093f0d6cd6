// MPI's progress rule: while a rank is in a call of gradred, the MPI underneath gets on. Most of
// what gradred does on one host makes no MPI call, so somebody has to. This is the one place that
// does, and it always runs in the thread that made the call: every thread level allows that.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/call.h"
#include "comm/generalized_request.h"

namespace gradred {

class Communicator;
class OperationLog;
class StartedOperation;

// What a thread has ended that may not call the MPI.
class LeftOver {
 public:
  void add(std::shared_ptr<StartedOperation> operation);
  void add(std::unique_ptr<Communicator> communicator);
  int complete();  // how many operations were

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<StartedOperation>> operations_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::atomic<bool> any_{false};
};

// Of the process.
struct Driving {
  std::atomic<std::uint64_t> mpi_driven_ns{0};  // when that was last
  std::atomic<bool> stopped{false}, stops_after_failure{false};
  LeftOver left_over;
  SpareRequests spare_requests;
};

// Lets the MPI underneath and all operations in flight get on; never blocks. Whatever waits calls
// it after its first microseconds, and then again and again.
void drive();
// The same, and what is left of a communicator's refused operations.
void drive(OperationLog& log);
// The first for who comes often: the operations in flight each time, the MPI every 100
// microseconds.
void drive_if_due();
void drive_between_operations(WaitHook& hook);

inline constexpr unsigned kOperationsPerClock = 32;  // at the clock
inline std::atomic<unsigned> operations_made{0};

// Once for each operation, since a rank that only ever finds its peers waiting never waits itself.
// Two threads at once may lose a count: it is how often that matters.
inline void count_operation(WaitHook& hook) {
  const unsigned made = operations_made.load(std::memory_order_relaxed) + 1;
  operations_made.store(made, std::memory_order_relaxed);
  if (made % kOperationsPerClock == 0) [[unlikely]] {
    drive_between_operations(hook);
  }
}

// Whether the MPI lets gradred drive operations while the program waits or tests in its functions.
bool completes_inside_mpi();
void drive_inside_mpi();  // from now on, where that takes a function of ours
// By a thread that may not call the MPI: the next one that may completes the request, or destroys
// the communicator.
void complete_later(std::shared_ptr<StartedOperation> operation);
void destroy_later(std::unique_ptr<Communicator> communicator);

// From now on the MPI is left alone: MPI_Finalize has begun.
void stop_driving();
// The program shrinks a communicator: the MPI is left alone once a failure is known, since it may
// wait for the dead.
void stop_driving_after_failure();

}  // namespace gradred
