#include "engine/driving.h"

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/failure.h"
#include "calls/settings.h"
#include "engine/notices/operation_log.h"
#include "mpi/mpi.h"

namespace gradred {
namespace {

constexpr std::uint64_t kDueNs = 100'000;

// What a thread that may not call the MPI leaves to others.
class LeftOver {
 public:
  void add(std::shared_ptr<Completable> request);
  void add(std::unique_ptr<Owner> communicator);
  int complete();  // returns how many requests were completed

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Completable>> requests_;
  std::vector<std::unique_ptr<Owner>> communicators_;
  std::atomic<bool> any_{false};
};

// The state of these functions in one process. Never destroyed: callbacks of the MPI and the
// progress thread may run after static destructors.
struct Driving {
  Engine engine;
  std::atomic<std::uint64_t> mpi_driven_ns{0};  // when the MPI was last asked for progress
  std::atomic<bool> stopped{false}, stops_after_failure{false};
  LeftOver left_over;
};

Driving& driving() {
  static auto* const driving = new Driving;
  return *driving;
}

// Testing a request that never completes asks the MPI for progress and does nothing else. A probe
// is not a substitute: one that finds a message returns it, and the MPI has made no progress.
mpi::Handle request_that_stays_open() {
  static const mpi::Handle request = [] {
    const mpi::Mpi& mpi = mpi::get();
    mpi::Handle made = 0;
    mpi.check(mpi.call.Grequest_start([](void*, void*) { return 0; }, [](void*) { return 0; },
                                      [](void*, int) { return 0; }, nullptr, &made),
              "MPI_Grequest_start");
    return made;
  }();
  return request;
}

// Open MPI calls this from every function that waits or tests, in any thread, also inside calls
// that gradred makes.
int on_progress_of_mpi() {
  thread_local bool inside = false;
  if (inside || driving().stopped) return 0;
  inside = true;
  const int ended = engine().progress_in_mpi() + driving().left_over.complete();
  inside = false;
  return ended;
}

bool is_due(std::uint64_t now) {
  return now - driving().mpi_driven_ns.load(std::memory_order_relaxed) >= kDueNs;
}

void drive_mpi(std::uint64_t now) {
  Driving& state = driving();
  if (!mpi::initialized()) return;
  if (state.stopped || (state.stops_after_failure && process_poisoned)) return;
  state.mpi_driven_ns.store(now, std::memory_order_relaxed);
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = request_that_stays_open();
  int done = 0;
  mpi.check(mpi.call.Test(&request, &done, mpi.is.status_ignore), "MPI_Test");
}

void LeftOver::add(std::shared_ptr<Completable> request) {
  const std::lock_guard lock(mutex_);
  requests_.push_back(std::move(request));
  any_ = true;
}

void LeftOver::add(std::unique_ptr<Owner> communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(std::move(communicator));
  any_ = true;
}

int LeftOver::complete() {
  if (!any_.load(std::memory_order_acquire) || Engine::in_its_thread()) return 0;
  std::vector<std::shared_ptr<Completable>> ended;
  std::vector<std::unique_ptr<Owner>> unused;  // destroyed without the lock
  {
    const std::lock_guard lock(mutex_);
    ended.swap(requests_);
    unused.swap(communicators_);
    any_ = false;
  }
  for (const auto& request : ended) request->complete();
  return static_cast<int>(ended.size());
}

}  // namespace

// ---- the engine ---------------------------------------------------------------------------------

Engine& engine() { return driving().engine; }

bool thread_may_drive() {
  return settings().progress_thread &&
         (!mpi::initialized() || mpi::thread_level() == mpi::get().is.thread_multiple);
}

bool may_start_on_node() { return thread_may_drive() || completes_inside_mpi(); }

bool may_be_driven_by_thread(const Operation& operation) {
  return operation.needs_no_mpi() ? settings().progress_thread : thread_may_drive();
}

void let_drive(std::shared_ptr<Operation> operation) {
  const bool may = may_be_driven_by_thread(*operation);
  engine().add(std::move(operation), may ? Engine::Driven::kByThread : Engine::Driven::kByCalls);
}

// ---- the MPI underneath -------------------------------------------------------------------------

void drive() {
  drive_mpi(now_ns());
  engine().progress();
  driving().left_over.complete();
}

void drive(OperationLog& log) {
  if (!log.quiet()) log.progress();
  drive();
}

void drive_if_due() {
  const std::uint64_t now = now_ns();
  if (is_due(now)) drive_mpi(now);
  engine().progress();
  driving().left_over.complete();
}

bool completes_inside_mpi() {
  const mpi::Functions& call = mpi::get().call;
  return call.Grequest_start_driven != nullptr || call.Progress_register != nullptr;
}

void drive_inside_mpi() {
  if (mpi::get().call.Progress_register == nullptr) return;
  static std::once_flag once;
  std::call_once(once, [] { mpi::get().call.Progress_register(on_progress_of_mpi); });
}

void complete_later(std::shared_ptr<Completable> request) {
  driving().left_over.add(std::move(request));
}

void destroy_later(std::unique_ptr<Owner> communicator) {
  driving().left_over.add(std::move(communicator));
}

void drive_between_operations(WaitHook& hook) {
  if (!is_due(now_ns())) return;
  hook.long_work();  // the MPI may have a long message to copy
  drive();
}

void stop_driving() {
  driving().stopped = true;
  const mpi::Functions& call = mpi::get().call;
  if (call.Progress_unregister != nullptr) call.Progress_unregister(on_progress_of_mpi);
}

bool driving_stopped() { return driving().stopped; }

void stop_driving_after_failure() { driving().stops_after_failure = true; }

}  // namespace gradred
