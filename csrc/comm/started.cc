#include "comm/started.h"

#include <new>
#include <string>

#include "base/failure.h"

namespace gradred {
namespace {

using Shared = std::shared_ptr<StartedOperation>;

struct AboutFlight {
  const Operation& operation;

  std::string text(std::uint64_t since) const {
    return operation.waiter() + " has had an operation in flight for " + seconds_text(since) +
           ": " + operation.waits_for();
  }
  bool reports() const { return operation.is_first_to_wait(); }
};

// The MPI asks within the Wait or Test that finds the request complete; a failed operation fails
// it. A code of our own with the reason for its text would not reach the program: Waitall hides the
// codes in the statuses, and MPICH 5 replaces them.
int query(void* extra, void* status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.call.Status_set_elements(status, mpi.is.byte_type, 0);
  mpi.call.Status_set_cancelled(status, 0);
  const StartedOperation& operation = **static_cast<Shared*>(extra);
  if (!operation.failed()) return 0;
  operation.say_why();
  return mpi.is.err_other;
}

int release(void* extra) {
  const std::unique_ptr<Shared> owned(static_cast<Shared*>(extra));
  return 0;
}

int cancel(void*, int) { return 0; }  // a collective operation cannot be cancelled

}  // namespace

void StartedOperation::open_request(const std::shared_ptr<StartedOperation>& self) {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  mpi.check(mpi.call.Grequest_start(query, release, cancel, new Shared(self), &request),
            "MPI_Grequest_start");
  request_ = mpi.normalise(request);
}

void StartedOperation::on_end(bool well) noexcept {
  if (observation_ != nullptr) observation_->end(well);
  const mpi::Mpi& mpi = mpi::get();
  if (request_ != mpi.is.request_null) mpi.call.Grequest_complete(request_);
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
    flight_.check(AboutFlight{*this});
  } catch (const std::bad_alloc&) {
    // The operation goes on; it is the report that has no memory.
  }
}

}  // namespace gradred
