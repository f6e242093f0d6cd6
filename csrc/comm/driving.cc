#include "comm/driving.h"

#include "base/clock.h"
#include "base/failure.h"
#include "comm/communicator.h"

namespace gradred {
namespace {

constexpr std::uint64_t kDueNs = 100'000;

std::atomic<std::uint64_t> mpi_driven_ns{0};
std::atomic<bool> stopped{false}, stops_after_failure{false};

// To test a request that never completes is to ask the MPI for progress and nothing else. A probe
// is not: one that finds a message returns it, and the MPI has done nothing.
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

bool is_due(std::uint64_t now) {
  return now - mpi_driven_ns.load(std::memory_order_relaxed) >= kDueNs;
}

void drive_mpi(std::uint64_t now) {
  if (stopped || (stops_after_failure && process_poisoned)) return;
  mpi_driven_ns.store(now, std::memory_order_relaxed);
  const mpi::Mpi& mpi = mpi::get();
  mpi::Handle request = request_that_stays_open();
  int done = 0;
  mpi.check(mpi.call.Test(&request, &done, mpi.is.status_ignore), "MPI_Test");
}

}  // namespace

void drive() {
  drive_mpi(now_ns());
  engine().progress();
}

void drive_if_due() {
  const std::uint64_t now = now_ns();
  if (is_due(now)) drive_mpi(now);
  engine().progress();
}

void drive_between_operations(WaitHook& hook) {
  if (!is_due(now_ns())) return;
  hook.long_work();  // the MPI may have a long message to copy
  drive();
}

void stop_driving() { stopped = true; }

void stop_driving_after_failure() { stops_after_failure = true; }

}  // namespace gradred
