// What ranks share of a board, and its lock.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/bell.h"
#include "coordinator/board.h"
#include "coordinator/submission.h"

namespace gradred {

static_assert(Board::kSlots < std::numeric_limits<std::uint16_t>::max(), "an index and 1 fit");

struct Board::Header {
  alignas(kLine) std::atomic<std::uint64_t> news;  // counts up where there is something to take
  Bell bell;
  alignas(kLine) std::atomic<std::uint32_t> owner;  // of the lock: its rank + 1
  // Ranks that have nothing to do but to wait for a name; whoever timelines counts as one.
  std::atomic<std::uint32_t> watchers;
  // Under the lock, all of these. What most turns at it write, in its line:
  std::uint64_t logged;       // entries
  std::uint64_t ahead_bytes;  // of entries that were not queued, and that no hungry rank has taken
  std::uint64_t batch_bytes;  // of the last batch of these
  std::uint32_t open;         // it may be joined: nobody has taken its entries
  // What they read:
  alignas(kLine) std::atomic<std::uint32_t> gone;  // a rank has left
  std::uint64_t most_fused_bytes;
  std::uint32_t queued;  // names
  std::int32_t highest;  // priority so far, or 0
  std::uint32_t joined;  // ranks
  std::uint32_t joins;   // those that wait behind the queue: 0 or 1
  // The rest:
  alignas(kLine) std::uint64_t closed;  // entries that a hungry rank has taken
  std::uint64_t turns;                  // names that were queued
  std::uint32_t hand;                   // where the search for a slot goes on
  std::int32_t last_joined;
  char why_left[240];
  // Of one of several boards:
  std::uint32_t first_ready, last_ready;  // slots that wait to be told; index + 1
  alignas(kLine) std::atomic<std::uint64_t> outgoing;
  Bell outgoing_bell;
  std::uint32_t asks_for_taken;  // is_taken() has said no
  std::uint32_t leaves;          // a rank has left, which is to be told
  std::uint32_t failure;         // of that rank; 0: none, else its kind and 1
  char why_leaves[240];
};

// A submission in its rank's lane: of what has been submitted before.
struct Board::Arrival {
  Place place;
  std::uint32_t generation;  // of the place's name and submission
  std::int32_t priority;
  std::atomic<std::uint32_t> number;  // modulo 2^32, from 1: written last
};

// A ring that one rank alone writes. It has no more under way than there are slots.
struct Board::Lane {
  alignas(kLine) Arrival arrivals[kSlots];

  // The one behind the first `count`.
  Arrival& next(std::uint64_t count) { return arrivals[count % kSlots]; }
  bool has(std::uint64_t count) {
    return next(count).number.load(std::memory_order_acquire) ==
           static_cast<std::uint32_t>(count + 1);
  }
};

// What each arrival writes makes a line, with the first word of the arrivals, which lies before
// it. The rest stays as it is while a name comes with the same arrays, and so in all ranks' caches.
struct Board::Slot {
  std::uint64_t hash;
  std::uint64_t entry;    // the number of its last one in the log, from 1
  std::uint32_t arrived;  // ranks
  std::uint32_t chunk;    // that is logged next
  std::int32_t first;     // the rank that came first
  std::int32_t last;      // with which it became ready
  std::int32_t priority;  // the highest
  std::uint16_t next;     // in its chain; index + 1
  std::uint16_t next_ready;
  bool used;         // it has a name
  bool ready;        // it is queued, or waits for the other sites
  bool in_chunks;    // as of a Submission
  bool has_problem;  // the text below
  bool is_missed;    // elsewhere

  Submission submission;  // of the first rank, without what stands above
  char name[kNameBytes];
  char problem[kProblemBytes];
  char elsewhere[kElsewhereBytes];  // ranks of other sites that have not submitted it
};

struct Board::Queued {
  Turn turn;
  std::uint32_t index;  // of its slot

  bool operator<(const Queued& other) const { return turn < other.turn; }
};

// One line, and what few entries have.
struct Board::Logged {
  alignas(kLine) BatchKey key;
  std::uint32_t place;  // kSlots: it has none here
  std::uint32_t chunk;
  std::int32_t last_joined;
  std::int32_t last;
  std::int32_t priority;
  std::uint32_t slot;  // that has the submission; kSlots: it is here
  bool in_chunks;
  bool joins;
  bool has_problem;
  bool is_last;
  bool some_lack;  // ranks that had joined have no submission

  Submission submission;
  char problem[kProblemBytes];
};

// Held for some hundred nanoseconds.
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
      if (tries % 64 == 0) sched_yield();
      if (tries % 65536 == 0 && board.look_) board.look_();
    }
  }
  ~Lock() { owner_.store(0, std::memory_order_release); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  std::atomic<std::uint32_t>& owner_;
};

}  // namespace gradred
