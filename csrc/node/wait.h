// Waiting for a word in shared memory, with the right mixture of spinning, yielding and sleeping.
#pragma once

#include <atomic>
#include <cstdint>

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

// Where the ranks sleep that wait for one rank's next publication.
struct Bell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

// Words are counters that only grow, compared modulo 2^64, each written by one rank.
class Waiter {
 public:
  // `spins`: each rank of the host has a core of its own.
  Waiter(bool spins, Guard& guard) : spins_(spins), looks_(spins ? 1500 : 20), guard_(guard) {}

  void use(Poll* poll) { poll_ = poll; }
  bool spins() const { return spins_; }
  // For a profile: the nanoseconds of waits that outlast the first looks are added to `sum`, which
  // nobody else changes.
  void charge_long_waits(std::atomic<std::uint64_t>& sum) { charged_ = &sum; }

  static bool reached(const std::atomic<std::uint64_t>& word, std::uint64_t target) {
    return static_cast<std::int64_t>(word.load(std::memory_order_acquire) - target) >= 0;
  }

  // Return once the word has reached the target; `bell` is that of the word's writer.
  void wait(const std::atomic<std::uint64_t>& word, std::uint64_t target, Bell& bell) {
    for (unsigned look = 0; look < looks_; ++look) {
      if (reached(word, target)) return;
    }
    wait_long(word, target, bell);
  }

  // Store the value and wake whoever sleeps for it; no system call when nobody does.
  //
  // A sleeper counts itself, then looks at the word once more; we store the word, then look at the
  // count. Where ranks share cores, both sides use a read-modify-write of the count, so that one of
  // them sees the other. Where they spin, sleepers are rare and the full barrier would cost more
  // than all the rest of an 8-byte operation: the plain load may miss a sleeper that is just lying
  // down, who then wakes by its own time limit (kShortNap).
  void publish(std::atomic<std::uint64_t>& word, std::uint64_t value, Bell& bell) {
    word.store(value, std::memory_order_release);
    const auto sleepers = spins_ ? bell.sleepers.load(std::memory_order_relaxed)
                                 : bell.sleepers.fetch_add(0, std::memory_order_acq_rel);
    if (sleepers != 0) [[unlikely]] {
      ring(bell);
    }
  }

  static void ring(Bell& bell);

 private:
  void wait_long(const std::atomic<std::uint64_t>& word, std::uint64_t target, Bell& bell);
  bool spin_and_yield(const std::atomic<std::uint64_t>& word, std::uint64_t target);
  void sleep_until(const std::atomic<std::uint64_t>& word, std::uint64_t target, Bell& bell);
  void look_around(const std::atomic<std::uint64_t>& word, std::uint64_t target);

  bool spins_;
  unsigned looks_;  // at the word before anything else happens
  Guard& guard_;
  Poll* poll_ = nullptr;
  std::uint64_t peers_checked_ns_ = 0;
  std::atomic<std::uint64_t>* charged_ = nullptr;
};

}  // namespace gradred
