// A page on which each process publishes what it began last, what it waits for, and how it leaves.
// `gradred ps` and waiting peers read it from other processes of the same user.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/signature.h"
#include "liveness/wait_record.h"

namespace gradred {

enum class Leaving : std::uint32_t {
  kNot,
  kFinalizes,  // has reached MPI_Finalize and begins no more operations
  kAtOnce,     // ends without MPI_Finalize
  kFinalized,  // MPI_Finalize has returned
};

// Published when a process leaves. By then it has completed or given up all operations that it
// began.
struct ShutdownRecord {
  static constexpr std::size_t kMost = 64;
  struct Begun {
    std::uint64_t communicator = 0;  // Communicator::key, or Registry::group_key
    // Operations begun: over messages for a communicator, which is also the number of the next one,
    // or on the MPI for a group.
    std::uint64_t operations = 0;
  };

  std::uint32_t leaving = 0;  // a Leaving; written last
  std::uint32_t known = 0;    // number of valid entries of `begun`; there may be more communicators
  std::uint64_t at_ns = 0;    // of now_ns()
  Begun begun[kMost];
  char reason[1008] = {};  // "has left the program: ..."
};

// The operation that this process began last. It is written without a lock: if several threads
// begin operations at the same time, the two fields may belong to different operations.
struct LastBegun {
  static constexpr std::uint64_t kOverMessages = 1ULL << 63;

  std::uint64_t operation = 0;  // 1 + its number, plus kOverMessages if over messages; 0: none yet
  std::uint64_t what = 0;       // Signature::what
};

// Lies in an anonymous file (liveness/shown_ranks.h).
struct StatusPage {
  static constexpr std::size_t kOffset = 4096;  // offset in the file

  LastBegun last;
  std::uint64_t sequence;  // odd while the next three fields are being written
  std::uint64_t since_ns;  // of now_ns(); 0: this process does not wait
  WaitRecord wait;
  char waits_for[1848];         // the same as text for people
  std::uint64_t lost_wake_ups;  // Sleep::Counts::lost
  // 1: the program's main thread has ended, and other threads keep the process running.
  std::uint64_t main_thread_has_ended;
  ShutdownRecord shutdown_record;
};
static_assert(sizeof(StatusPage) == 4096);

// A consistent copy of the page's wait. read_wait() returns false if the owner was stopped while it
// wrote.
struct ShownWait {
  std::uint64_t since_ns = 0;  // 0: it does not wait
  WaitRecord wait{};
  std::string waits_for{};
};
bool read_wait(StatusPage& page, ShownWait& shown);

// Maps a status file for the life of the process. Returns nullptr if it cannot be mapped.
StatusPage* map_status_file(int descriptor, bool writable);

// Sets this process's own file, whose descriptor must stay open. Returns false if it cannot be
// mapped.
bool use_status_file(int descriptor);
int status_file();  // -1: none
// Returns a number derived from the file name that a link in /proc shows, which is random for
// status files. Returns 0 if the link does not exist or may not be read. Needs no descriptor.
std::uint64_t name_of_file(const std::string& link);

// Where post_begun() writes. Without a status page this is memory that no process reads, so that
// operations need not test for it.
extern std::atomic<LastBegun*> last_begun;

// Called by every operation. Costs two plain stores.
inline void post_begun(std::uint64_t operation, const Signature& signature) {
  LastBegun& last = *last_begun.load(std::memory_order_relaxed);
  std::atomic_ref(last.operation).store(operation + 1, std::memory_order_relaxed);
  std::atomic_ref(last.what).store(signature.what, std::memory_order_relaxed);
}

void post_wait(std::uint64_t since_ns, const WaitRecord& wait, std::string_view waits_for);
void clear_wait();
// The argument `leaving` replaces shutdown_record.leaving.
void post_shutdown_record(Leaving leaving, const ShutdownRecord& shutdown_record);
void post_leaving(Leaving leaving);  // the rest has been published before
void post_end_of_main_thread();

}  // namespace gradred
