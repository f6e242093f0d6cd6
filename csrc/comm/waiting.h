// How a thread waits for an operation in flight: it drives it, and everything else meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/core.h"
#include "comm/call.h"
#include "engine/operation.h"

namespace gradred {

// An operation that is advanced step by step: for Watchdog.
struct AboutOperation {
  const Operation& operation;

  WaitRecord record() const { return operation.wait_record(); }
  std::string waiter() const { return operation.waiter(); }
  std::string waits_for() const { return operation.waits_for(); }
  bool reports() const { return operation.is_first_to_wait(); }
};

// Until it has ended; throws what ended it. What the hook throws gives the operation up.
void wait_for(Operation& operation, WaitHook& hook);
// The same until a time of now_ns(), and without throwing what ended it: whether it has ended.
bool wait_until(Operation& operation, WaitHook& hook, std::uint64_t deadline_ns);
// The same, and what the hook throws gives up nothing: it may be another one's operation.
bool see_through(Operation& operation, WaitHook& hook, std::uint64_t deadline_ns = UINT64_MAX);

// Likewise where nobody asked for a time limit: inside a function of the MPI.
void see_through_in_mpi(Operation& operation, WaitHook& hook);

// How to wait for messages of the MPI underneath: there is no word in memory to sleep on. With a
// core for each rank it looks all the time, as the MPIs do; else it leaves the core to others, who
// may be the ones that the message needs, after a few looks: a hundred take as long as a message.
// On a busy machine they keep it for some ten milliseconds each time, so what has to be done
// meanwhile is due by the clock, too.
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
