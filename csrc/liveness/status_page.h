// What this process began last, what it waits for, and how it leaves, where other processes of the
// user can read it: `gradred ps`, and the peers that wait for it.
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
  kFinalizes,  // has come to MPI_Finalize and begins no operation any more
  kAtOnce,     // ends without MPI_Finalize
  kFinalized,  // MPI_Finalize is over
};

// The last word of a process. What it has begun it has also ended, or given up.
struct ShutdownRecord {
  static constexpr std::size_t kMost = 64;
  struct Begun {
    std::uint64_t communicator = 0;  // Communicator::key, or Registry::group_key
    std::uint64_t operations = 0;  // begun over messages, and so the number of the next; on the MPI
  };

  std::uint32_t leaving = 0;  // a Leaving; written last
  std::uint32_t known = 0;    // how many entries of `begun` count; there may be more communicators
  std::uint64_t at_ns = 0;    // of now_ns()
  Begun begun[kMost];
  char reason[1008] = {};  // "has left the program: ..."
};

// The operation that this process began last. Written without a lock: where several threads begin
// operations at a time, the two may be of different ones.
struct LastBegun {
  static constexpr std::uint64_t kOverMessages = 1ULL << 63;

  std::uint64_t operation = 0;  // 1 + its number, with kOverMessages or without; 0: none so far
  std::uint64_t what = 0;       // Signature::what
};

// Lies in a file in memory (liveness/shown_ranks.h).
struct StatusPage {
  static constexpr std::size_t kOffset = 4096;  // in the file

  LastBegun last;
  std::uint64_t sequence;  // odd while the next three are being written
  std::uint64_t since_ns;  // of now_ns(); 0: this process waits for nothing
  WaitRecord wait;
  char waits_for[1856];         // the same in words, for people
  std::uint64_t lost_wake_ups;  // Sleep::Counts::lost
  ShutdownRecord shutdown_record;
};
static_assert(sizeof(StatusPage) == 4096);

// The wait in it as it stood at one moment; false where its owner has been stopped as it wrote.
struct ShownWait {
  std::uint64_t since_ns = 0;  // 0: it waits for nothing
  WaitRecord wait{};
  std::string waits_for{};
};
bool read_wait(StatusPage& page, ShownWait& shown);

// The memory of a status file, for as long as the process lives; null where it cannot be mapped.
StatusPage* map_status_file(int descriptor, bool writable);

// This process's own file, a descriptor that stays open. False where it cannot be mapped.
bool use_status_file(int descriptor);
int status_file();  // -1: none
// A number for the name of the file that a link in /proc shows: status files have random names. 0:
// there is no such link, or this process may not read it. Takes no descriptor.
std::uint64_t name_of_file(const std::string& link);

// Where to write it. Without a status page that is memory which nobody reads, so that no operation
// has to ask.
extern std::atomic<LastBegun*> last_begun;

// On the path of every operation: two plain stores.
inline void post_begun(std::uint64_t operation, const Signature& signature) {
  LastBegun& last = *last_begun.load(std::memory_order_relaxed);
  std::atomic_ref(last.operation).store(operation + 1, std::memory_order_relaxed);
  std::atomic_ref(last.what).store(signature.what, std::memory_order_relaxed);
}

void post_wait(std::uint64_t since_ns, const WaitRecord& wait, std::string_view waits_for);
void clear_wait();
// `leaving` of `shutdown_record` is replaced by the argument.
void post_shutdown_record(Leaving leaving, const ShutdownRecord& shutdown_record);
void post_leaving(Leaving leaving);  // the rest is said already

}  // namespace gradred
