// MPI's progress rule: while a rank is in a call of gradred, the MPI underneath makes progress.
// Most of what gradred does on one host makes no MPI call, so the functions below ask the MPI for
// progress. No other code does. They always run in the thread that made the call, which every
// thread level allows.
#pragma once

#include <atomic>
#include <memory>

#include "calls/call.h"
#include "calls/owner.h"
#include "engine/engine.h"

namespace gradred {

class OperationLog;

Engine& engine();  // the only one of the process
// From now on the engine advances the operation: its thread does if it may, else only calls of
// gradred do.
void let_drive(std::shared_ptr<Operation> operation);
bool may_be_driven_by_thread(const Operation& operation);

// Whether the progress thread may advance operations without the program: the MPI allows calls from
// any thread, and the settings allow a progress thread.
bool thread_may_drive();
// Whether nonblocking calls may begin in shared memory: the MPI's own functions find that an
// operation without MPI calls has ended, whichever thread has advanced it.
bool may_start_on_node();

// Makes progress on the MPI underneath and on all operations in flight; never blocks. A thread that
// waits calls it after its first microseconds, and then again and again.
void drive();
// The same, and clears away what is left of a communicator's refused operations.
void drive(OperationLog& log);
// For callers that come often: makes progress on the operations in flight each time, and on the MPI
// every 100 microseconds.
void drive_if_due();
void drive_between_operations(WaitHook& hook);

inline constexpr unsigned kOperationsPerClock = 32;  // operations between two looks at the clock
inline std::atomic<unsigned> operations_made{0};

// Called once for each operation, because a rank that always finds its peers waiting never waits
// itself. If two threads come at once, a count may be lost: only the approximate rate matters.
inline void count_operation(WaitHook& hook) {
  const unsigned made = operations_made.load(std::memory_order_relaxed) + 1;
  operations_made.store(made, std::memory_order_relaxed);
  if (made % kOperationsPerClock == 0) [[unlikely]] {
    drive_between_operations(hook);
  }
}

// Whether the MPI lets gradred advance operations while the program waits or tests in MPI
// functions.
bool completes_inside_mpi();
void drive_inside_mpi();  // from now on; registers a function if the MPI needs one

// A request of the MPI that stands for an operation.
class Completable {
 public:
  virtual void complete() noexcept = 0;

 protected:
  ~Completable() = default;
};

// Called by a thread that may not call the MPI. The next thread that may call it completes the
// request, or destroys the communicator.
void complete_later(std::shared_ptr<Completable> request);
void destroy_later(std::unique_ptr<Owner> communicator);

// From now on these functions make no MPI call: MPI_Finalize has begun.
void stop_driving();
bool driving_stopped();
// For a program that shrinks a communicator: once a failure is known these functions make no MPI
// call, because the MPI may wait for failed processes.
void stop_driving_after_failure();

}  // namespace gradred
