// Sleeping for words in shared memory, on futexes that the writers of the words wake.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace gradred {

// Where those sleep who wait for one rank's next publication.
struct Bell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

void ring(Bell& bell);

// Words are counters that only grow, compared modulo 2^64, each written by one rank.
inline bool has_reached(const std::atomic<std::uint64_t>& word, std::uint64_t target) {
  return static_cast<std::int64_t>(word.load(std::memory_order_acquire) - target) >= 0;
}

// How many threads are about to sleep for words of a group, or do (Sleep). As long as none is, a
// writer need not look at the bells, for which it would need a full memory barrier.
using SleepersExpected = std::atomic<std::uint32_t>;

// A writer stores its word and calls this, which wakes those who sleep for it. No `expected`:
// sleepers are usual.
inline void ring_for_sleepers(Bell& bell, const SleepersExpected* expected) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (expected != nullptr && expected->load(std::memory_order_relaxed) == 0) return;
  if (bell.sleepers.fetch_add(0, std::memory_order_acq_rel) != 0) [[unlikely]] {
    ring(bell);
  }
}

// A word, and the value that somebody needs it to reach.
struct Awaited {
  const std::atomic<std::uint64_t>* word = nullptr;
  std::uint64_t target = 0;
  Bell* bell = nullptr;                  // of the word's writer
  SleepersExpected* expected = nullptr;  // as its writer knows it

  bool reached() const { return has_reached(*word, target); }
};

// Each process asks the kernel for the barriers that sleepers need before it writes its first word.
void allow_barriers();

// Waiting without a core, until somebody has to look again.
class Sleep {
 public:
  // Until the limit has passed, somebody has changed `wake` from `unchanged`, or one of the words
  // may have been reached; at once where one has. Several words and a wake word need a kernel that
  // waits for several futexes (Linux 5.16); others wait for the first, and kBlindNs at most. Also
  // returns for no reason. The words' writers look for sleepers meanwhile: it sees to that.
  static void until_any(std::span<const Awaited> words, std::atomic<std::uint32_t>* wake,
                        std::uint32_t unchanged, std::uint64_t limit_ns);
  static void until(const Awaited& word, std::uint64_t limit_ns) {
    until_any({&word, 1}, nullptr, 0, limit_ns);
  }
  static void wake(std::atomic<std::uint32_t>& word);  // after changing it

  // Of this process's sleeps for words. A wake-up is lost if a sleep has ended by its limit
  // although its word had been reached, and nobody has rung for it: the limit alone has ended it.
  struct Counts {
    std::uint64_t sleeps = 0, ended_by_limit = 0, lost = 0;
  };
  static Counts counts();
  // From now on, where others see it. The lost ones so far are added.
  static void count_lost_at(std::uint64_t& shown);

  static constexpr std::uint64_t kBlindNs = 1'000'000;
  static constexpr std::uint64_t kForever = ~std::uint64_t{0};
};

}  // namespace gradred
