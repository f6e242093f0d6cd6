// Waiting for a counter in shared memory by spinning, yielding and sleeping.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/bell.h"

namespace gradred {

// What the owner of a waiting thread wants done meanwhile, such as MPI progress and checks for
// signals and time limits. Called after the first microseconds of a wait and then repeatedly, at
// least every 20 ms. An exception from poll() ends the operation and poisons the group.
class Poll {
 public:
  virtual ~Poll() = default;
  virtual void poll() = 0;
};

// Watches over the group while one of its ranks waits. Throws when the wait cannot succeed any
// more.
class Guard {
 public:
  virtual ~Guard() = default;
  virtual void glance() = 0;         // cheap: throws if a peer has failed
  virtual void check_awaited() = 0;  // reads /proc: throws if an awaited process has ended
};

// When a waiter that spins yields its core, learned from how earlier yields ended. Times are in
// nanoseconds.
class YieldTimes {
 public:
  bool yields(std::uint64_t waited, std::uint64_t now) const {
    return waited > spin_ && now > again_;
  }
  // `reached`: what is waited for came during a yield of `took`, which ended at `now`.
  void learn(std::uint64_t took, bool reached, std::uint64_t now);

 private:
  static constexpr std::uint64_t kSpinFor = 20'000;

  std::uint64_t spin_ = kSpinFor;
  std::uint64_t met_peer_ = 0, again_ = 0;
};

class Waiter {
 public:
  // `spins`: each rank of the host has its own core. `expected`: counter of the threads that sleep
  // for what this rank publishes; nullptr if sleepers are usual, for example when ranks share
  // cores.
  Waiter(bool spins, Guard& guard, SleepersExpected* expected = nullptr)
      : spins_(spins), looks_(spins ? 1500 : kFewLooks), guard_(guard), expected_(expected) {}

  void use(Poll* poll) { poll_ = poll; }
  bool spins() const { return spins_; }
  // Called if other threads run on this core, which may be the ones that are awaited. The waiter
  // then yields at once. Since being woken takes longer than being scheduled next, it yields many
  // times before it sleeps.
  void yield_at_once() { spins_ = false, yields_ = 50, looks_ = kFewLooks; }
  // For profiles: adds to `sum` the nanoseconds of waits that outlast the first looks. Nothing else
  // may change `sum`.
  void charge_long_waits(std::atomic<std::uint64_t>& sum) { charged_ = &sum; }

  // Returns once the counter has reached the target.
  void wait(const Awaited& awaited) {
    if (!comes_soon(*awaited.word, awaited.target)) wait_long(awaited);
  }
  // Returns whether the counter reaches the target during the first looks of a wait.
  bool comes_soon(const std::atomic<std::uint64_t>& word, std::uint64_t target) const {
    for (unsigned look = 0; look < looks_; ++look) {
      if (has_reached(word, target)) return true;
    }
    return false;
  }

  // Stores the value and wakes the threads that sleep for it. Makes no system call if there are
  // none.
  void publish(std::atomic<std::uint64_t>& word, std::uint64_t value, Bell& bell) {
    word.store(value, std::memory_order_release);
    ring_for_sleepers(bell, expected_);
  }
  SleepersExpected* expected() const { return expected_; }

 private:
  static constexpr unsigned kFewLooks = 20;

  void wait_long(const Awaited& awaited);
  bool spin_and_yield(const Awaited& awaited);
  void sleep_until(const Awaited& awaited);
  void look_around(const Awaited& awaited);

  bool spins_;
  unsigned yields_ = 5;     // before it sleeps, if it does not spin
  unsigned looks_;          // at the counter before it does anything else
  YieldTimes yield_times_;  // if it spins
  Guard& guard_;
  SleepersExpected* expected_;
  Poll* poll_ = nullptr;
  std::uint64_t peers_checked_ns_ = 0;
  std::atomic<std::uint64_t>* charged_ = nullptr;
};

}  // namespace gradred
