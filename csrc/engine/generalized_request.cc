#include "engine/generalized_request.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <mutex>
#include <new>
#include <utility>

#include "base/failure.h"
#include "base/tell_once.h"
#include "engine/waiting.h"

namespace gradred {

struct MadeRequest {
  std::shared_ptr<Operation> operation;   // nullptr: no operation in flight uses it
  GeneralizedRequest* request = nullptr;  // of the operation
  mpi::Handle handle = 0;
  std::list<MadeRequest*> node = {this};  // empty while it is in a list of the RequestPool
  std::list<MadeRequest*>::iterator place = node.begin();
  bool due = false;  // the MPI has to be notified that it is complete
};

namespace {

MadeRequest& made_request(void* extra) { return *static_cast<MadeRequest*>(extra); }

// The requests that no operation uses, and those of EndedRequests of which the MPI does not know
// that they are complete.
class RequestPool {
 public:
  MadeRequest* take();  // a spare one; nullptr: there is none
  void put(MadeRequest* made);
  MadeRequest* take_as_due();  // the same, and it is due now
  void add_due(MadeRequest* made);
  // Returns whether it was due. Of two threads that ask one gets true.
  bool remove_due(MadeRequest* made);
  bool put_if_due(MadeRequest* made);              // the same, and makes it a spare one
  bool remove_if_listed(const MadeRequest* made);  // the same; it may have been destroyed
  MadeRequest* take_due();                         // nullptr: there is none

 private:
  void take_out(MadeRequest* made, std::list<MadeRequest*>& list);

  std::mutex mutex_;
  std::list<MadeRequest*> spare_, due_;
  std::atomic<bool> any_due_{false};
};

// Never destroyed: operations may end after static destructors.
RequestPool& request_pool() {
  static auto* const all = new RequestPool;
  return *all;
}

void complete_if_due(MadeRequest& made) {
  if (request_pool().remove_due(&made)) mpi::get().call.Grequest_complete(made.handle);
}

// Open MPI calls this from all functions that wait or test. Returns how many are complete now.
int complete_due() {
  int completed = 0;
  while (const MadeRequest* const made = request_pool().take_due()) {
    mpi::get().call.Grequest_complete(made->handle);
    ++completed;
  }
  return completed;
}

// Whether functions of the MPI that wait or test call back, so that it need not learn it before.
bool mpi_asks() {
  const mpi::Functions& call = mpi::get().call;
  if (call.Grequest_start_driven != nullptr) return true;
  if (call.Progress_register == nullptr) return false;
  static std::once_flag once;
  std::call_once(once, [&] { call.Progress_register(complete_due); });
  return true;
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
  const MadeRequest& made = made_request(extra);
  // An error here would go to the program's error handler, which may end the job. So none is
  // returned if gradred itself raises the error.
  if (made.operation == nullptr || !made.operation->failed() || made.request->is_reported())
    return 0;
  print_why(*made.operation);
  return mpi.is.err_other;
}

int release(void* extra) {
  const std::unique_ptr<MadeRequest> owned(static_cast<MadeRequest*>(extra));
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
  MadeRequest& made = made_request(extra);
  if (made.operation == nullptr) return complete_if_due(made), 0;
  Operation& operation = *made.operation;
  if (!operation.advance()) drive_if_due();
  if (operation.ended()) {
    made.request->complete();
  } else if (!operation.spins()) {
    sched_yield();
  }
  return 0;
}

int wait(int count, void** extras, double, void*) {
  for (int i = 0; i < count; ++i) {
    MadeRequest& made = made_request(extras[i]);
    if (made.operation == nullptr) {
      complete_if_due(made);
      continue;
    }
    Operation& operation = *made.operation;
    NoHook hook(operation);
    try {
      see_through_in_mpi(operation, hook);
    } catch (...) {
      operation.abandon(std::current_exception());
    }
    made.request->complete();
  }
  return 0;
}

int cancel(void*, int) { return 0; }  // a collective operation cannot be cancelled

MadeRequest* new_request() {
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = 0;
  auto made = std::make_unique<MadeRequest>();
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
  made_ = request_pool().take();
  if (made_ == nullptr) made_ = new_request();
  made_->request = this;
  made_->operation = std::move(operation);
  handle_ = made_->handle;
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

std::shared_ptr<Operation> GeneralizedRequest::operation() const { return made_->operation; }

GeneralizedRequest::Held::Held(GeneralizedRequest& request)
    : request_(request), held_(request.change(State::kOpen, State::kHeld)) {}

GeneralizedRequest::Held::~Held() {
  if (held_ && !request_.change(State::kHeld, State::kOpen)) request_.complete();
}

bool GeneralizedRequest::take_back() {
  if (driving_stopped()) return complete(), false;  // no other operation follows
  if (!change(State::kEnded, State::kOver)) return false;
  request_pool().put(std::exchange(made_, nullptr));
  return true;
}

// ---- requests of ended operations ---------------------------------------------------------------

void EndedRequest::open() {
  if (!mpi_asks()) {
    made_ = new_request();
    mpi::get().call.Grequest_complete(made_->handle);
    return;
  }
  made_ = request_pool().take_as_due();
  if (made_ != nullptr) return;
  made_ = new_request();
  request_pool().add_due(made_);
}

mpi::Handle EndedRequest::handle() const { return made_->handle; }

void EndedRequest::drop() {
  const MadeRequest* const made = std::exchange(made_, nullptr);
  if (made != nullptr && request_pool().remove_if_listed(made)) {
    mpi::get().call.Grequest_complete(made->handle);
  }
}

bool EndedRequest::take_back() { return request_pool().put_if_due(std::exchange(made_, nullptr)); }

// ---- slots that no operation in flight uses -----------------------------------------------------

MadeRequest* RequestPool::take() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return nullptr;
  MadeRequest* const made = spare_.front();
  made->node.splice(made->node.begin(), spare_, made->place);
  return made;
}

// The reference to the operation is released without the lock.
void RequestPool::put(MadeRequest* made) {
  const std::shared_ptr<Operation> done = std::move(made->operation);
  const std::lock_guard lock(mutex_);
  spare_.splice(spare_.begin(), made->node);
}

MadeRequest* RequestPool::take_as_due() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return nullptr;
  MadeRequest* const made = spare_.front();
  due_.splice(due_.begin(), spare_, made->place);
  made->due = true;
  any_due_.store(true, std::memory_order_release);
  return made;
}

void RequestPool::add_due(MadeRequest* made) {
  const std::lock_guard lock(mutex_);
  due_.splice(due_.begin(), made->node);
  made->due = true;
  any_due_.store(true, std::memory_order_release);
}

// `list` is where it is afterwards.
void RequestPool::take_out(MadeRequest* made, std::list<MadeRequest*>& list) {
  list.splice(list.begin(), due_, made->place);
  made->due = false;
  any_due_.store(!due_.empty(), std::memory_order_relaxed);
}

bool RequestPool::remove_due(MadeRequest* made) {
  const std::lock_guard lock(mutex_);
  if (!made->due) return false;
  take_out(made, made->node);
  return true;
}

bool RequestPool::remove_if_listed(const MadeRequest* made) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(due_, made);
  if (found == due_.end()) return false;
  take_out(*found, (*found)->node);
  return true;
}

bool RequestPool::put_if_due(MadeRequest* made) {
  const std::lock_guard lock(mutex_);
  if (!made->due) return false;
  take_out(made, spare_);
  return true;
}

MadeRequest* RequestPool::take_due() {
  if (!any_due_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock(mutex_);
  if (due_.empty()) return nullptr;
  MadeRequest* const made = due_.front();
  take_out(made, made->node);
  return made;
}

void complete_spare_requests() noexcept {
  const mpi::Mpi& mpi = mpi::get();
  if (mpi.call.Progress_unregister != nullptr) mpi.call.Progress_unregister(complete_due);
  complete_due();
  while (const MadeRequest* const made = request_pool().take()) {
    mpi::Handle handle = made->handle;
    mpi.call.Grequest_complete(handle);
    int done = 0;
    mpi.call.Test(&handle, &done, mpi.is.status_ignore);
  }
}

}  // namespace gradred
