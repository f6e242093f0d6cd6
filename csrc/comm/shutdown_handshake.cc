#include "comm/shutdown_handshake.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "base/text.h"
#include "comm/communicator.h"
#include "engine/driving.h"
#include "liveness/failure_board.h"
#include "liveness/local_peers.h"
#include "liveness/process.h"
#include "liveness/status_page.h"
#include "liveness/supervisor.h"
#include "liveness/watchdog.h"

namespace gradred {
namespace {

using Processes = std::vector<ProcessId>;

// Never destroyed, as handlers at exit read it.
struct ExitReason {
  std::string text;      // why the program ends; empty: it ends well
  bool of_loss = false;  // the reason is the loss of another rank
};
ExitReason& exit_reason() {
  static auto* const reason = new ExitReason;
  return *reason;
}

// What peers must know of this rank once it begins no operation any more. Peers that share memory
// with it see what it has begun.
ShutdownRecord shutdown_record() {
  ShutdownRecord said;
  said.at_ns = now_ns();
  for (const auto& communicator : Communicator::alive_with_lanes()) {
    if (communicator->size() == 1 || communicator->node_path().serves_all()) continue;
    if (said.known == ShutdownRecord::kMost) break;
    said.begun[said.known++] = {communicator->key(), communicator->operation_log().begun()};
  }
  for (const auto& [group, operations] : Registry::get().counts_on_mpi()) {
    if (said.known == ShutdownRecord::kMost) break;
    said.begun[said.known++] = {group, operations};
  }
  set_text(said.reason, how_it_leaves());
  return said;
}

bool any_failed() {
  return std::ranges::any_of(Communicator::alive(), [](const auto& communicator) {
    communicator->liveness().receive_notices();
    return communicator->liveness().failed();
  });
}

// Whether a process has ended without MPI_Finalize.
bool any_died(const Processes& processes) {
  return std::ranges::any_of(processes, [](const ProcessId& process) {
    return leaving(process) != Leaving::kFinalized && !is_alive(process) &&
           leaving(process) != Leaving::kFinalized;  // it may have finalised between the two looks
  });
}

bool any_leaves_at_once(const Processes& processes) {
  return std::ranges::any_of(
      processes, [](const ProcessId& process) { return leaving(process) == Leaving::kAtOnce; });
}

bool all_there(const Processes& processes) {
  return std::ranges::all_of(processes, [](const auto& p) { return leaving(p) != Leaving::kNot; });
}

struct AboutEnd {
  const Processes& others;

  static WaitRecord record() { return {.state = WaitRecord::State::kFinalize}; }
  static std::string waiter() { return "process " + std::to_string(getpid()); }
  std::string waits_for() const {
    std::string missing;
    for (const ProcessId& process : others) {
      if (leaving(process) != Leaving::kNot) continue;
      missing += (missing.empty() ? ": process " : ", ") + std::to_string(process.pid);
    }
    return "MPI_Finalize until the other ranks come to it" + missing;
  }
  bool reports() const {  // one of the waiting ranks of this host reports
    return std::ranges::none_of(others, [](const ProcessId& process) {
      return process.pid < getpid() && leaving(process) == Leaving::kFinalizes;
    });
  }
};

// Waits until all have come to MPI_Finalize; returns false if one never will. Their operations, and
// messages of the program's own, may still need this process to make progress on the MPI.
bool await(const Processes& others) {
  constexpr std::uint64_t kEveryNs = 2'000'000, kLivesEveryNs = 50'000'000;
  std::uint64_t next_look = 0, next_look_at_lives = 0;
  const std::uint64_t begin = now_ns();
  Watchdog watchdog(Watchdog::Of::kUnlimitedWait);
  for (bool there = false; !there;) {
    drive();
    const std::uint64_t now = now_ns();
    const timespec nap{
        0, std::clamp<long>(static_cast<long>((now - begin) / 1000), 20'000, 1'000'000)};
    nanosleep(&nap, nullptr);
    if (now < next_look) continue;
    next_look = now + kEveryNs;
    if (any_failed() || any_leaves_at_once(others)) return false;
    // MPI_Finalize would wait for the failed rank, and nobody ends ranks that go on without it.
    if (any_rank_failed()) return false;
    there = all_there(others);
    watchdog.check(AboutEnd{others});
    if (now < next_look_at_lives) continue;
    next_look_at_lives = now + kLivesEveryNs;
    if (any_died(others)) return false;
  }
  return true;
}

bool among_others() {
  int size = 0;
  mpi::get().check(mpi::get().call.Comm_size(mpi::get().is.comm_world, &size), "MPI_Comm_size");
  return size > 1;
}

constexpr std::uint64_t kLongestWaitNs = 2'000'000'000;
// In this time the launcher notices an ended process: mpiexec took more than 10 ms at times.
constexpr useconds_t kNoticedUs = 200'000;

// Without a supervisor only mpiexec reports the job's status. MPICH's mpiexec takes the status of
// the first process that ends without MPI_Finalize, so that should be a process with an error to
// report.
void let_others_end_first(const Processes& others) {
  const auto has_yet_to_end = [](const ProcessId& process) {
    return leaving(process) != Leaving::kFinalizes && is_alive(process);
  };
  const std::uint64_t begin = now_ns();
  while (std::ranges::any_of(others, has_yet_to_end) && now_ns() - begin < kLongestWaitNs) {
    usleep(5000);
  }
  usleep(kNoticedUs);
}

// Set by leave_before_threads(), before it looks for communicators.
std::atomic<bool> process_left{false};

void leave(Communicator& communicator) {
  if (communicator.size() == 1) return;
  const std::string who =
      communicator.liveness().names().of(communicator.rank(), process_text(this_process()));
  const auto why = std::make_exception_ptr(PeerLost(who + " " + how_it_leaves()));
  if (NodeGroup* const group = communicator.node_path().group()) group->poison(report_of(why));
  // Peers on other hosts learn of it by messages, if the MPI allows calls from this thread.
  if (!communicator.has_messages() || thread_may_drive()) communicator.liveness().fail(why);
}

}  // namespace

void set_exit_reason(std::string_view reason, bool of_loss) {
  exit_reason() = {std::string(reason), of_loss};
}

std::string how_it_leaves() {
  const std::string& why = exit_reason().text;
  return "has left the program" + (why.empty() ? "" : ": " + why);
}

void leave_before_threads() noexcept try {
  process_left = true;
  post_shutdown_record(Leaving::kAtOnce, shutdown_record());
  for (const auto& communicator : Communicator::alive_with_lanes()) leave(*communicator);
} catch (const std::exception&) {
  // The MPI has failed: no peer can be notified.
}

void leave_if_left(Communicator& communicator) {
  if (process_left) leave(communicator);
}

void let_cause_end_first() noexcept {
  if (!exit_reason().of_loss || has_supervisor()) return;
  const std::vector<ProcessId> others = met_peers();
  if (others.empty()) return;
  const std::uint64_t begin = now_ns();
  while (std::ranges::all_of(others, is_alive) && now_ns() - begin < kLongestWaitNs) usleep(5000);
  usleep(kNoticedUs);
}

bool has_exit_reason() { return !exit_reason().text.empty(); }

void stop_engine() noexcept { engine().stop("a rank " + how_it_leaves()); }

bool shutdown_handshake() noexcept {
  const ShutdownRecord said = shutdown_record();
  try {
    stop_engine();
    const bool ends_badly = has_exit_reason() && among_others();
    if (!process_poisoned && !ends_badly) {
      post_shutdown_record(Leaving::kFinalizes, said);
      const Processes others = job_peers();
      if (await(others)) return true;
      if (!has_supervisor()) let_others_end_first(others);
    }
  } catch (const std::exception&) {
    // The MPI has failed: no peer can be notified.
  }
  post_shutdown_record(Leaving::kAtOnce, said);
  return false;
}

void finalized() noexcept { post_leaving(Leaving::kFinalized); }

}  // namespace gradred
