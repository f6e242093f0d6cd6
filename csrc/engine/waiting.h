// How a thread waits for an operation in flight: it advances the operation, and makes progress on
// everything else meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/core.h"
#include "calls/call.h"
#include "engine/operation.h"

namespace gradred {

// An operation that is advanced step by step, as Watchdog sees it.
struct AboutOperation {
  const Operation& operation;

  WaitRecord record() const { return operation.wait_record(); }
  std::string waiter() const { return operation.waiter(); }
  std::string waits_for() const { return operation.waits_for(); }
  bool reports() const { return operation.is_first_to_wait(); }
};

// Waits until the operation has ended; throws what ended it. If the hook throws, the operation is
// abandoned.
void wait_for(Operation& operation, WaitHook& hook);
// The same, but waits no longer than until `deadline_ns` of now_ns(), and does not throw what ended
// the operation. Returns whether it has ended.
bool wait_until(Operation& operation, WaitHook& hook, std::uint64_t deadline_ns);
// The same, but if the hook throws, nothing is abandoned: the operation may be another caller's.
bool see_through(Operation& operation, WaitHook& hook, std::uint64_t deadline_ns = UINT64_MAX);

// Likewise inside an MPI function, where the program has asked for no time limit.
void see_through_in_mpi(Operation& operation, WaitHook& hook);

// How to wait for messages of the MPI underneath, for which there is no word in memory to sleep on.
// If each rank has a core of its own, the thread looks all the time, as MPIs do. Otherwise it
// leaves the core to other processes after a few looks, because the message may need them; a
// hundred looks take as long as a message. On a busy machine the others keep the core for some ten
// milliseconds each time, so what has to be done meanwhile is due by the clock, too.
class Backoff {
 public:
  explicit Backoff(bool spins = false) : spins_(spins) {}
  template <class Meanwhile>
  void wait(Meanwhile meanwhile) {
    constexpr std::uint64_t kDueNs = 1'000'000;
    ++looks_;
    if (looks_ < kLooks && !(looks_ > kFewLooks && cores_are_shared())) return;
    const std::uint64_t now = now_ns();
    if (looks_ % 16 == 0 || now - done_ns_ >= kDueNs) {
      meanwhile();
      done_ns_ = now;
    }
    pause(now);
  }

 private:
  static constexpr unsigned kLooks = 100, kFewLooks = 4;  // before it yields
  void pause(std::uint64_t now);

  const bool spins_;
  unsigned looks_ = 0;
  std::uint64_t begin_ns_ = 0, done_ns_ = 0;
};

}  // namespace gradred
