#include "comm/generalized_request.h"

#include <sched.h>

#include <utility>

#include "comm/context.h"
#include "comm/driving.h"
#include "comm/started.h"
#include "comm/waiting.h"

namespace gradred {

struct GeneralizedRequest::Slot {
  std::shared_ptr<StartedOperation> operation;  // nullptr: not in use
  mpi::Handle handle;
};

namespace {

using Slot = GeneralizedRequest::Slot;

StartedOperation& operation_of(void* extra) { return *static_cast<Slot*>(extra)->operation; }

// The MPI calls this within the Wait or Test that finds the request complete. If the operation has
// failed, the request fails. An error code of gradred's own, with the reason as its text, would not
// reach the program: Waitall hides the codes in the statuses, and MPICH 5 replaces them.
int query(void* extra, void* status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.make_empty(status);
  const StartedOperation* const operation = static_cast<Slot*>(extra)->operation.get();
  // An error here would go to the program's error handler, which may end the job. So none is
  // returned if gradred itself raises the error.
  if (operation == nullptr || !operation->failed() || operation->is_told()) return 0;
  operation->say_why();
  return mpi.is.err_other;
}

int release(void* extra) {
  const std::unique_ptr<Slot> owned(static_cast<Slot*>(extra));
  return 0;
}

// Inside the MPI no lock of the program is released, and no signal is looked for.
class NoHook final : public WaitHook {
 public:
  explicit NoHook(StartedOperation& operation) : operation_(operation) {}
  void waiting() override { operation_.look_after(); }
  void long_work() override {}

 private:
  StartedOperation& operation_;
};

// MPICH calls poll() and wait() from its functions that test and wait. Until the request is
// complete, MPICH leaves its own progress to them, so they make progress on the MPI as well.
int poll(void* extra, void*) {
  // complete_all() has made this call.
  if (static_cast<Slot*>(extra)->operation == nullptr) return 0;
  StartedOperation& operation = operation_of(extra);
  if (!operation.advance()) drive_if_due();
  if (operation.ended()) {
    operation.generalized_request().complete();
  } else if (!operation.spins()) {
    sched_yield();
  }
  return 0;
}

int wait(int count, void** extras, double, void*) {
  for (int i = 0; i < count; ++i) {
    StartedOperation& operation = operation_of(extras[i]);
    NoHook hook(operation);
    try {
      see_through_in_mpi(operation, hook);
    } catch (...) {
      operation.abandon(std::current_exception());
    }
    operation.generalized_request().complete();
  }
  return 0;
}

int cancel(void*, int) { return 0; }  // a collective operation cannot be cancelled

Slot* new_slot() {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  auto made = std::make_unique<Slot>();
  drive_inside_mpi();
  mpi.check(
      mpi.call.Grequest_start_driven != nullptr
          ? mpi.call.Grequest_start_driven(query, release, cancel, poll, wait, made.get(), &request)
          : mpi.call.Grequest_start(query, release, cancel, made.get(), &request),
      "MPI_Grequest_start");
  made->handle = mpi.normalise(request);
  return made.release();
}

}  // namespace

// The operation may end meanwhile, because other threads advance the operations in the queue.
void GeneralizedRequest::open(std::shared_ptr<StartedOperation> operation) {
  slot_ = Context::get().driving.spare_requests.take();
  if (slot_ == nullptr) slot_ = new_slot();
  slot_->operation = std::move(operation);
  handle_ = slot_->handle;
  if (change(State::kNone, State::kOpen)) return;
  state_ = State::kEnded;
  complete();
}

bool GeneralizedRequest::end() noexcept {
  while (true) {  // a waiting thread may come or go
    if (change(State::kNone, State::kOver) || change(State::kHeld, State::kEnded)) return false;
    if (change(State::kOpen, State::kEnded)) return true;
    if (state_ == State::kOver) return false;  // the operation is reused
  }
}

void GeneralizedRequest::complete() noexcept {
  if (change(State::kEnded, State::kOver)) mpi::get().call.Grequest_complete(handle_);
}

std::shared_ptr<StartedOperation> GeneralizedRequest::operation() const { return slot_->operation; }

GeneralizedRequest::Held::Held(GeneralizedRequest& request)
    : request_(request), held_(request.change(State::kOpen, State::kHeld)) {}

GeneralizedRequest::Held::~Held() {
  if (held_ && !request_.change(State::kHeld, State::kOpen)) request_.complete();
}

bool GeneralizedRequest::take_back() {
  if (Context::get().driving.stopped) return complete(), false;  // no other operation follows
  if (!change(State::kEnded, State::kOver)) return false;
  Context::get().driving.spare_requests.put(std::exchange(slot_, nullptr));
  return true;
}

// ---- spare requests -----------------------------------------------------------------------------

GeneralizedRequest::Slot* SpareRequests::take() {
  const std::lock_guard lock(mutex_);
  if (slots_.empty()) return nullptr;
  Slot* const slot = slots_.back();
  slots_.pop_back();
  return slot;
}

// The reference to the operation is released without the lock.
void SpareRequests::put(Slot* slot) {
  const std::shared_ptr<StartedOperation> done = std::move(slot->operation);
  const std::lock_guard lock(mutex_);
  slots_.push_back(slot);
}

void SpareRequests::complete_all() noexcept {
  const mpi::Mpi& mpi = mpi::get();
  while (const Slot* const slot = take()) {
    mpi::Handle handle = slot->handle;
    mpi.call.Grequest_complete(handle);
    int done = 0;
    mpi.call.Test(&handle, &done, mpi.is.status_ignore);
  }
}

}  // namespace gradred
