// Sleeping until a counter in shared memory reaches a value, on futexes that the counter's writer
// wakes.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace gradred {

// The futex on which threads sleep that wait for one rank's next publication.
struct Bell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

void ring(Bell& bell);

// An awaited word is a counter that only grows and is written by one rank. Comparison is modulo
// 2^64.
inline bool has_reached(const std::atomic<std::uint64_t>& word, std::uint64_t target) {
  return static_cast<std::int64_t>(word.load(std::memory_order_acquire) - target) >= 0;
}

// How many threads sleep for a group's counters (Sleep) or are about to. While it is 0, a writer
// skips the bells, for which it would need a full memory barrier.
using SleepersExpected = std::atomic<std::uint32_t>;

// A writer calls this after it has stored its counter. It wakes the threads that sleep for the
// counter. `expected` nullptr: sleepers are usual, and the bell is always checked.
inline void ring_for_sleepers(Bell& bell, const SleepersExpected* expected) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (expected != nullptr && expected->load(std::memory_order_relaxed) == 0) return;
  if (bell.sleepers.fetch_add(0, std::memory_order_acq_rel) != 0) [[unlikely]] {
    ring(bell);
  }
}

// A counter, and the value for which a thread waits.
struct Awaited {
  const std::atomic<std::uint64_t>* word = nullptr;
  std::uint64_t target = 0;
  Bell* bell = nullptr;                  // of the writer
  SleepersExpected* expected = nullptr;  // as the writer uses it

  bool reached() const { return has_reached(*word, target); }
};

// Registers this process with the kernel for the memory barriers that sleepers need. Each process
// calls it before it first writes a counter.
void allow_barriers();

// Waiting without use of a core.
class Sleep {
 public:
  // Sleeps until the limit has passed, `wake` differs from `unchanged`, or one of the counters may
  // have reached its target. Returns at once if a counter has reached it already. May also return
  // for no reason. Waiting for several counters and a wake word needs a kernel with futex_waitv
  // (Linux 5.16). On older kernels the call waits for the first one only, and for kBlindNs at most.
  // During the sleep the writers of all counters look for sleepers.
  static void until_any(std::span<const Awaited> words, std::atomic<std::uint32_t>* wake,
                        std::uint32_t unchanged, std::uint64_t limit_ns);
  static void until(const Awaited& word, std::uint64_t limit_ns) {
    until_any({&word, 1}, nullptr, 0, limit_ns);
  }
  static void wake(std::atomic<std::uint32_t>& word);  // called after the word has been changed

  // Counts of this process's sleeps for counters. A wake-up is lost if a sleep ended by its limit
  // although its counter had been reached and no writer had rung the bell.
  struct Counts {
    std::uint64_t sleeps = 0, ended_by_limit = 0, lost = 0;
  };
  static Counts counts();
  // From now on counts lost wake-ups in `shown`, where other processes see them. Adds those counted
  // so far.
  static void count_lost_at(std::uint64_t& shown);

  static constexpr std::uint64_t kBlindNs = 1'000'000;
  static constexpr std::uint64_t kForever = ~std::uint64_t{0};
};

}  // namespace gradred
