#include "comm/started.h"

#include <sched.h>

#include <new>
#include <string>

#include "base/failure.h"
#include "comm/communicator.h"
#include "comm/driving.h"
#include "comm/waiting.h"

namespace gradred {
namespace {

using Shared = std::shared_ptr<StartedOperation>;

// The MPI asks within the Wait or Test that finds the request complete; a failed operation fails
// it. A code of our own with the reason for its text would not reach the program: Waitall hides the
// codes in the statuses, and MPICH 5 replaces them.
int query(void* extra, void* status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.call.Status_set_elements(status, mpi.is.byte_type, 0);
  mpi.call.Status_set_cancelled(status, 0);
  const StartedOperation& operation = **static_cast<Shared*>(extra);
  // An error here would go to the program's handler, which may end the job: not where gradred
  // itself raises it.
  if (!operation.failed() || operation.is_told()) return 0;
  operation.say_why();
  return mpi.is.err_other;
}

int release(void* extra) {
  const std::unique_ptr<Shared> owned(static_cast<Shared*>(extra));
  return 0;
}

// Nothing is left of a program's lock or signals inside the MPI.
class NoHook final : public WaitHook {
 public:
  explicit NoHook(StartedOperation& operation) : operation_(operation) {}
  void waiting() override { operation_.look_after(); }
  void long_work() override {}

 private:
  StartedOperation& operation_;
};

// MPICH calls these from its functions that test and wait. It leaves itself to them until the
// request is complete, so they drive it as well.
int poll(void* extra, void*) {
  StartedOperation& operation = **static_cast<Shared*>(extra);
  if (!operation.advance()) drive_if_due();
  if (operation.ended()) {
    operation.complete_request();
  } else if (!operation.spins()) {
    sched_yield();
  }
  return 0;
}

int wait(int count, void** extras, double, void*) {
  for (int i = 0; i < count; ++i) {
    StartedOperation& operation = **static_cast<Shared*>(extras[i]);
    NoHook hook(operation);
    try {
      see_through_in_mpi(operation, hook);
    } catch (...) {
      operation.abandon(std::current_exception());
    }
    operation.complete_request();
  }
  return 0;
}

int cancel(void*, int) { return 0; }  // a collective operation cannot be cancelled

}  // namespace

void StartedOperation::open_request(const std::shared_ptr<StartedOperation>& self) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  auto* const extra = new Shared(self);
  drive_inside_mpi();
  mpi.check(
      mpi.call.Grequest_start_driven != nullptr
          ? mpi.call.Grequest_start_driven(query, release, cancel, poll, wait, extra, &request)
          : mpi.call.Grequest_start(query, release, cancel, extra, &request),
      "MPI_Grequest_start");
  request_ = mpi.normalise(request);
  self_ = self;
  open_ = true;
}

void StartedOperation::complete_request() noexcept {
  if (open_.exchange(false)) mpi::get().call.Grequest_complete(request_);
}

void StartedOperation::on_end(bool well) noexcept {
  if (observation_ != nullptr) observation_->end(well);
  if (!open_) return;
  if (thread_may_drive() || !Engine::in_its_thread()) return complete_request();
  complete_later(self_.lock());
}

void StartedOperation::say_why() const noexcept {
  if (told_.load(std::memory_order_relaxed)) return;
  try {
    print_report(waiter() + ": the MPI's own Wait or Test ends with " + text_with_kind(failure()));
  } catch (const std::bad_alloc&) {
    // The program gets the MPI's error in any case.
  }
}

void StartedOperation::look_after() noexcept {
  constexpr std::uint64_t kRecentlyNs = 1'000'000'000;
  const std::uint64_t tested_ns = tested_ns_.load(std::memory_order_relaxed);
  if (tested_ns != 0 && now_ns() - tested_ns < kRecentlyNs) return;
  try {
    flight_.check(AboutOperation{*this});
  } catch (const std::bad_alloc&) {
    // The operation goes on; it is the report that has no memory.
  }
}

}  // namespace gradred
