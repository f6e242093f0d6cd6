#include "runtime/rank_process.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/failure.h"
#include "comm/shutdown_handshake.h"
#include "engine/callbacks.h"
#include "engine/driving.h"
#include "engine/fork_guard.h"
#include "liveness/local_peer_search.h"
#include "liveness/process.h"
#include "liveness/shown_ranks.h"
#include "liveness/supervisor.h"
#include "liveness/watchdog.h"
#include "mpi/mpi.h"
#include "node/paths/helpers.h"
#include "observe/process_trace.h"
#include "observe/reports/profile_report.h"
#include "runtime/launched.h"
#include "runtime/read_settings.h"

namespace gradred {
namespace {

std::atomic<bool> program_ended{false};

bool runs() {
  int finalized = 0;
  mpi::get().call.Finalized(&finalized);
  return mpi::initialized() && finalized == 0;
}

void show_this_rank() {
  if (status_file() >= 0 || !runs()) return;
  const mpi::Mpi& mpi = mpi::get();
  AboutRank about{.pid = getpid()};
  mpi::Handle parent = 0;
  mpi.check(mpi.call.Comm_rank(mpi.is.comm_world, &about.rank), "MPI_Comm_rank");
  mpi.check(mpi.call.Comm_size(mpi.is.comm_world, &about.size), "MPI_Comm_size");
  mpi.check(mpi.call.Comm_get_parent(&parent), "MPI_Comm_get_parent");
  about.spawned = mpi.normalise(parent) != mpi.is.comm_null;
  show_rank(about);
}

bool poisoned() { return process_poisoned.load(std::memory_order_relaxed); }

void meet_all_local_peers() {
  if (poisoned()) return;
  tell_leaving(false, std::nullopt);  // from here on, peers see that this rank is ending
  await_local_peers();
}

// Gives up the operations in flight and calls their callbacks.
void finish_operations() noexcept {
  constexpr std::chrono::seconds kLimit(5);  // for callbacks that other threads have started
  stop_engine();
  done_callbacks().finish(kLimit);
}

void write_records() {
  try {
    write_trace();
  } catch (...) {
    report_profile(profile_wanted());
    throw;
  }
  report_profile(profile_wanted());
}

void end_program_at_exit() noexcept {
  try {
    end_program();
  } catch (const std::exception& error) {
    print_report(error.what());
  }
}

// A glibc handler of this kind receives the exit status. The handler that was registered last runs
// first, and so before the destructors of any library.
void end_at_once(int status, void*) {
  end_program_at_exit();
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

void begin(void* library) {
  static std::once_flag once;
  std::call_once(once, [library] {
    this_process();  // these are looked up now, while files can still be opened
    host_id();
    mpi::load(library);
    guard_forks();
    find_supervisor();
    tell_finalize("begins");
    std::atexit(end_program_at_exit);
  });
  begin_communicator();
}

void begin_communicator() {
  read_settings();
  show_this_rank();
}

void exit_at_once() { on_exit(end_at_once, nullptr); }

void end_program() {
  if (is_fork_of_rank() || program_ended.exchange(true)) return;
  tell_leaving(poisoned(), first_failure());
  if (!poisoned()) engine().settle(std::chrono::seconds(20));
  finish_operations();
  Helpers::stop();
  if (runs() && !has_exit_reason()) meet_all_local_peers();
  write_records();
  let_cause_end_first();
}

int finalize(int (*mpi_finalize)()) {
  if (is_fork_of_rank()) return 0;  // a child must not finalize its parent's MPI
  if (!program_ended) {             // the program itself called this, and continues
    meet_all_local_peers();
    // MPI asks for a Wait of each operation. Those that nobody has waited for end at once if all
    // ranks have started them.
    if (!poisoned()) engine().settle(std::chrono::seconds(20), std::chrono::seconds(1));
    finish_operations();
  }
  if (shutdown_handshake()) {
    tell_finalize("enters");
    const int code = mpi_finalize != nullptr ? mpi_finalize() : mpi::get().call.Finalize();
    finalized();
    tell_finalize("returns");
    return code;
  }
  tell_finalize("skips");
  on_exit(end_at_once, nullptr);
  return 0;
}

}  // namespace gradred
