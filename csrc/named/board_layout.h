// The layout of a board's shared memory, and the board's lock.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bell.h"
#include "base/core.h"
#include "named/board.h"
#include "named/submission.h"

namespace gradred {

static_assert(Board::kSlots < std::numeric_limits<std::uint16_t>::max(), "an index and 1 fit");

struct Board::Header {
  alignas(kLine) std::atomic<std::uint64_t> news;  // increases when there is something to take
  Bell bell;
  alignas(kLine) std::atomic<std::uint32_t> owner;  // of the lock: its rank + 1; 0: free
  // Ranks that have nothing to do but wait for a name. A rank that writes a timeline counts as one
  // more.
  std::atomic<std::uint32_t> watchers;
  // The following fields are used under the lock. This cache line has those that most submissions
  // write:
  std::uint64_t logged;  // entries that have been logged
  // Bytes of entries that were logged without being queued and that no rank with capacity has
  // taken.
  std::uint64_t ahead_bytes;
  std::uint64_t batch_bytes;  // bytes of the last batch of these
  std::uint32_t open;         // 1: no rank has taken entries of that batch, so more may join it
  // This line has those that most submissions only read:
  alignas(kLine) std::atomic<std::uint32_t> gone;  // 1: a rank has left
  std::uint64_t most_fused_bytes;
  std::uint32_t queued;  // names in the queue
  std::int32_t highest;  // highest priority so far, at least 0
  std::uint32_t joined;  // ranks that have joined
  // 1: all ranks have joined, and the entry for it is logged when the queue is empty.
  std::uint32_t joins;
  // Rarely used fields:
  alignas(kLine) std::uint64_t closed;  // entries that a rank with capacity has taken
  std::uint64_t turns;                  // names that were queued so far
  std::uint32_t hand;                   // where the next search for a free slot starts
  std::int32_t last_joined;
  char why_left[240];
  // Used if the board is one of several:
  // List of slots that are complete and to be reported to the coordinator; index + 1.
  std::uint32_t first_ready, last_ready;
  alignas(kLine) std::atomic<std::uint64_t> outgoing;
  Bell outgoing_bell;
  // is_taken() has returned false; the next rank with capacity that takes entries notifies the
  // relay.
  std::uint32_t asks_for_taken;
  std::uint32_t leaves;  // 1: a rank has left, and the coordinator has to learn it
  // The kind of failure for which that rank left, + 1; 0: no failure.
  std::uint32_t failure;
  char why_leaves[240];
};

// A submission in its rank's lane. Its name and arrays are known from an earlier submission.
struct Board::Arrival {
  Place place;
  std::uint32_t generation;  // generation of the slot when the rank submitted
  std::int32_t priority;
  std::atomic<std::uint32_t> number;  // counts arrivals from 1, modulo 2^32; written last
};

// A ring of arrivals that only its rank writes. A rank never has more arrivals pending than there
// are slots.
struct Board::Lane {
  alignas(kLine) Arrival arrivals[kSlots];

  // The arrival that follows the first `count`.
  Arrival& next(std::uint64_t count) { return arrivals[count % kSlots]; }
  bool has(std::uint64_t count) {
    return next(count).number.load(std::memory_order_acquire) ==
           static_cast<std::uint32_t>(count + 1);
  }
};

// The first fields are written by each arrival. They fill one cache line together with the first
// word of the arrival bits, which lies just before the slot. The rest does not change while a name
// is submitted again with the same arrays, so all ranks keep it in their caches.
struct Board::Slot {
  std::uint64_t hash;
  std::uint64_t entry;       // number of its last log entry, counted from 1
  std::uint32_t arrived;     // ranks that have arrived
  std::uint32_t chunk;       // the next chunk to be logged
  std::int32_t first;        // the rank that arrived first
  std::int32_t last;         // the rank whose arrival made the slot complete
  std::int32_t priority;     // the highest that a rank gave
  std::uint16_t next;        // next slot of its hash chain; index + 1
  std::uint16_t next_ready;  // next slot of the list for the coordinator; index + 1
  bool used;                 // it has a name
  bool recurs;               // which has been submitted more than once
  bool ready;                // all ranks have arrived: it is queued, or waits for other host groups
  NamedForm form;            // kAlone if a rank submitted it so
  bool has_problem;          // `problem` has a text
  bool is_missed;            // `elsewhere` has a text

  // Of the first rank to arrive, without `priority` and `form`, which are above.
  Submission submission;
  char name[kNameBytes];
  char problem[kProblemBytes];
  char elsewhere[kElsewhereBytes];  // ranks of other host groups that have not submitted it
};

// The text of the structure of a tree. Few names have one, so that several slots share the memory
// for one text, and the last of them has it.
struct Board::Structure {
  std::uint32_t owner;  // index of the slot, and 1
  char text[kStructureBytes];
};

struct Board::Queued {
  Turn turn;
  std::uint32_t index;  // of its slot

  bool operator<(const Queued& other) const { return turn < other.turn; }
};

// The fields of every entry fill one cache line; only few entries use those behind it.
struct Board::Logged {
  alignas(kLine) BatchKey key;
  std::uint32_t place;  // slot in which this host group's ranks have arrived; kSlots: none
  std::uint32_t chunk;
  std::int32_t last_joined;
  std::int32_t last;
  std::int32_t priority;
  // Slot that holds the submission; kSlots: the entry holds it itself.
  std::uint32_t slot;
  NamedForm form;
  bool joins;
  bool has_problem;
  bool is_last;
  bool some_lack;  // some ranks have joined and have no submission of their own

  // Beyond the first cache line:
  Submission submission;
  char problem[kProblemBytes];
};

// A spin lock. Each holder keeps it for some hundred nanoseconds.
class Board::Lock {
 public:
  explicit Lock(const Board& board) : owner_(board.header_.owner) {
    const auto mine = static_cast<std::uint32_t>(board.rank_) + 1;
    for (unsigned tries = 1;; ++tries) {
      std::uint32_t free = owner_.load(std::memory_order_relaxed);
      if (free == 0 && owner_.compare_exchange_weak(free, mine, std::memory_order_acquire,
                                                    std::memory_order_relaxed)) {
        return;
      }
      relax();
      if (tries % kTriesPerYield == 0) sched_yield();
      if (tries % 65536 == 0 && board.look_) board.look_();
    }
  }
  ~Lock() { owner_.store(0, std::memory_order_release); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  // Some ten microseconds, after which the holder has probably lost its core. Where other programs
  // run, a yield may take milliseconds.
  static constexpr unsigned kTriesPerYield = 1024;

  std::atomic<std::uint32_t>& owner_;
};

}  // namespace gradred
