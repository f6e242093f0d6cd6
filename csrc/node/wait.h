// Waiting for a word in shared memory, with the right mixture of spinning, yielding and sleeping.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/bell.h"

namespace gradred {

// What the owner of a waiting thread wants done meanwhile: drive the MPI underneath, look for
// signals and time limits. Called after the first microseconds of a wait, then again and again, at
// least every 20 ms. Whatever it throws ends the operation and poisons the group.
class Poll {
 public:
  virtual ~Poll() = default;
  virtual void poll() = 0;
};

// Looks after the group while one of its ranks waits: throws when waiting has become pointless.
class Guard {
 public:
  virtual ~Guard() = default;
  virtual void glance() = 0;         // cheap: has a peer given up?
  virtual void check_awaited() = 0;  // reads /proc: do all live who still have to contribute?
};

class Waiter {
 public:
  // `spins`: each rank of the host has a core of its own. `expected` is that of what it publishes;
  // none where sleepers are usual, as where ranks share cores.
  Waiter(bool spins, Guard& guard, SleepersExpected* expected = nullptr)
      : spins_(spins), looks_(spins ? 1500 : kFewLooks), guard_(guard), expected_(expected) {}

  void use(Poll* poll) { poll_ = poll; }
  bool spins() const { return spins_; }
  // Others run on this core: it is theirs at once. They may be what the word waits for, and to be
  // woken takes longer than to be next, so this thread stays in line for a while.
  void yield_at_once() { spins_ = false, yields_ = 50, looks_ = kFewLooks; }
  // For a profile: the nanoseconds of waits that outlast the first looks are added to `sum`, which
  // nobody else changes.
  void charge_long_waits(std::atomic<std::uint64_t>& sum) { charged_ = &sum; }

  // Return once the word has reached the target.
  void wait(const Awaited& awaited) {
    const std::atomic<std::uint64_t>& word = *awaited.word;  // in registers while it looks
    const std::uint64_t target = awaited.target;
    for (unsigned look = 0; look < looks_; ++look) {
      if (has_reached(word, target)) return;
    }
    wait_long(awaited);
  }

  // Store the value and wake whoever sleeps for it; no system call when nobody does.
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
  unsigned yields_ = 5;  // where it does not spin
  unsigned looks_;       // at the word before anything else happens
  Guard& guard_;
  SleepersExpected* expected_;
  Poll* poll_ = nullptr;
  std::uint64_t peers_checked_ns_ = 0;
  std::atomic<std::uint64_t>* charged_ = nullptr;
};

}  // namespace gradred
