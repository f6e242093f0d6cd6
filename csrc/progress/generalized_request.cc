#include "progress/generalized_request.h"

#include <sched.h>

#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "base/tell_once.h"
#include "progress/waiting.h"

namespace gradred {

struct GeneralizedRequest::Slot {
  std::shared_ptr<Operation> operation;  // nullptr: not in use
  GeneralizedRequest* request;           // of the operation
  mpi::Handle handle;
};

namespace {

using Slot = GeneralizedRequest::Slot;

Slot& slot_of(void* extra) { return *static_cast<Slot*>(extra); }

// The requests that no operation uses.
class SpareRequests {
 public:
  Slot* take();  // nullptr: there is none
  void put(Slot* slot);

 private:
  std::mutex mutex_;
  std::vector<Slot*> slots_;
};

// Never destroyed: operations may end after static destructors.
SpareRequests& spare_requests() {
  static auto* const spare = new SpareRequests;
  return *spare;
}

// Prints the reason for the error with which the MPI's own Wait or Test ends.
void print_why(const Operation& operation) noexcept {
  try {
    print_report(operation.waiter() + ": the MPI's own Wait or Test ends with " +
                 text_with_kind(operation.failure()));
  } catch (const std::bad_alloc&) {
    // The program gets the MPI's error in any case.
  }
}

// The MPI calls this within the Wait or Test that finds the request complete. If the operation has
// failed, the request fails. An error code of gradred's own, with the reason as its text, would not
// reach the program: Waitall hides the codes in the statuses, and MPICH 5 replaces them.
int query(void* extra, void* status) {
  const mpi::Mpi& mpi = mpi::get();
  mpi.make_empty(status);
  const Slot& slot = slot_of(extra);
  // An error here would go to the program's error handler, which may end the job. So none is
  // returned if gradred itself raises the error.
  if (slot.operation == nullptr || !slot.operation->failed() || slot.request->is_told()) return 0;
  print_why(*slot.operation);
  return mpi.is.err_other;
}

int release(void* extra) {
  const std::unique_ptr<Slot> owned(static_cast<Slot*>(extra));
  return 0;
}

// Inside the MPI no lock of the program is released, and no signal is looked for.
class NoHook final : public WaitHook {
 public:
  explicit NoHook(Operation& operation) : operation_(operation) {}
  void waiting() override { operation_.look_after(); }
  void long_work() override {}

 private:
  Operation& operation_;
};

// MPICH calls poll() and wait() from its functions that test and wait. Until the request is
// complete, MPICH leaves its own progress to them, so they make progress on the MPI as well.
int poll(void* extra, void*) {
  Slot& slot = slot_of(extra);
  if (slot.operation == nullptr) return 0;  // complete_spare_requests() has made this call
  Operation& operation = *slot.operation;
  if (!operation.advance()) drive_if_due();
  if (operation.ended()) {
    slot.request->complete();
  } else if (!operation.spins()) {
    sched_yield();
  }
  return 0;
}

int wait(int count, void** extras, double, void*) {
  for (int i = 0; i < count; ++i) {
    const Slot& slot = slot_of(extras[i]);
    Operation& operation = *slot.operation;
    NoHook hook(operation);
    try {
      see_through_in_mpi(operation, hook);
    } catch (...) {
      operation.abandon(std::current_exception());
    }
    slot.request->complete();
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
void GeneralizedRequest::open(std::shared_ptr<Operation> operation) {
  slot_ = spare_requests().take();
  if (slot_ == nullptr) slot_ = new_slot();
  slot_->request = this;
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

std::shared_ptr<Operation> GeneralizedRequest::operation() const { return slot_->operation; }

GeneralizedRequest::Held::Held(GeneralizedRequest& request)
    : request_(request), held_(request.change(State::kOpen, State::kHeld)) {}

GeneralizedRequest::Held::~Held() {
  if (held_ && !request_.change(State::kHeld, State::kOpen)) request_.complete();
}

bool GeneralizedRequest::take_back() {
  if (driving_stopped()) return complete(), false;  // no other operation follows
  if (!change(State::kEnded, State::kOver)) return false;
  spare_requests().put(std::exchange(slot_, nullptr));
  return true;
}

// ---- spare requests -----------------------------------------------------------------------------

Slot* SpareRequests::take() {
  const std::lock_guard lock(mutex_);
  if (slots_.empty()) return nullptr;
  Slot* const slot = slots_.back();
  slots_.pop_back();
  return slot;
}

// The reference to the operation is released without the lock.
void SpareRequests::put(Slot* slot) {
  const std::shared_ptr<Operation> done = std::move(slot->operation);
  const std::lock_guard lock(mutex_);
  slots_.push_back(slot);
}

void complete_spare_requests() noexcept {
  const mpi::Mpi& mpi = mpi::get();
  while (const Slot* const slot = spare_requests().take()) {
    mpi::Handle handle = slot->handle;
    mpi.call.Grequest_complete(handle);
    int done = 0;
    mpi.call.Test(&handle, &done, mpi.is.status_ignore);
  }
}

}  // namespace gradred
