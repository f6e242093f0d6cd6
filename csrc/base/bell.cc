#include "base/bell.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/clock.h"

namespace gradred {
namespace {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

// As in linux/futex.h since 5.16; older headers lack it.
struct FutexOfMany {
  std::uint64_t value, address;
  std::uint32_t flags, reserved;
};
constexpr std::uint32_t kOf32Bits = 2;
constexpr long kFutexWaitv = 449;  // the same on every architecture
constexpr std::size_t kMostWords = 64;

std::atomic<std::uint64_t> the_sleeps{0}, the_ended_by_limit{0};
std::uint64_t unseen_lost = 0;
std::atomic<std::uint64_t*> the_lost{&unseen_lost};

std::atomic_ref<std::uint64_t> lost() {
  return std::atomic_ref(*the_lost.load(std::memory_order_acquire));
}

timespec timespec_of(std::uint64_t nanoseconds) {
  return {static_cast<time_t>(nanoseconds / 1'000'000'000),
          static_cast<long>(nanoseconds % 1'000'000'000)};
}

// Without FUTEX_PRIVATE, since processes share the futex.
long futex(std::atomic<std::uint32_t>& word, int what, std::uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), what, value, limit, nullptr,
                 0);
}

bool kernel_waits_for_several() {
  static const bool does =
      syscall(kFutexWaitv, nullptr, 0, 0, nullptr, CLOCK_MONOTONIC) == -1 && errno == EINVAL;
  return does;
}

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

bool can_make_barriers() {
  static const bool can = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
  return can;
}

// All futexes on which one thread sleeps.
class Futexes {
 public:
  void add(std::atomic<std::uint32_t>& word, std::uint32_t value) {
    words_[count_] = &word;
    all_[count_++] = {value, reinterpret_cast<std::uint64_t>(&word), kOf32Bits, 0};
  }

  // Returns whether the limit ended the sleep although each futex could have woken it before.
  bool wait(std::uint64_t limit_ns) {
    const bool several = count_ > 1, blind = several && !kernel_waits_for_several();
    if (blind) limit_ns = std::min(limit_ns, Sleep::kBlindNs);
    const bool ends = limit_ns != Sleep::kForever;
    long result = 0;
    if (several && !blind) {
      const timespec end = timespec_of(ends ? kernel_ns() + limit_ns : 0);
      result = syscall(kFutexWaitv, all_.data(), count_, 0, ends ? &end : nullptr, CLOCK_MONOTONIC);
    } else {
      const timespec limit = timespec_of(limit_ns);
      result = futex(*words_[0], FUTEX_WAIT, static_cast<std::uint32_t>(all_[0].value),
                     ends ? &limit : nullptr);
    }
    return result == -1 && errno == ETIMEDOUT && !blind;
  }

 private:
  std::array<FutexOfMany, kMostWords + 1> all_;
  std::array<std::atomic<std::uint32_t>*, kMostWords + 1> words_;
  std::uint32_t count_ = 0;
};

// Makes the writers of the counters look for sleepers, in two steps.
//
// First, the sleeper counts itself as expected, before it reads the counters. A writer stores its
// counter, then reads whether a sleeper is expected. A memory barrier on all cores where ranks run
// separates the two actions of each, so that at least one of them sees the other. If the kernel
// cannot make this barrier, a writer's store may become visible a moment after the writer has read
// `expected`. No bound for that time is known, so the sleeper waits for much longer than it can
// take.
//
// Second, the sleeper counts itself in `sleepers` of the bell, also before it reads the counters. A
// writer that has seen a sleeper expected checks this count. Both access the count by a
// read-modify-write, so the later one sees the earlier one.
class SleepingFor {
 public:
  explicit SleepingFor(std::span<const Awaited> words) : words_(words) {
    bool expects = false;
    for (const Awaited& one : words_) {
      if (one.expected == nullptr) continue;
      one.expected->fetch_add(1, std::memory_order_seq_cst);
      expects = true;
    }
    if (expects) make_barrier();
    for (const Awaited& one : words_) one.bell->sleepers.fetch_add(1, std::memory_order_acq_rel);
  }
  ~SleepingFor() {
    for (const Awaited& one : words_) {
      one.bell->sleepers.fetch_sub(1, std::memory_order_acq_rel);
      if (one.expected != nullptr) one.expected->fetch_sub(1, std::memory_order_acq_rel);
    }
  }
  SleepingFor(const SleepingFor&) = delete;
  SleepingFor& operator=(const SleepingFor&) = delete;

 private:
  static void make_barrier() {
    if (can_make_barriers() && membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) return;
    constexpr timespec kLong{0, 1'000'000};
    nanosleep(&kLong, nullptr);
  }

  const std::span<const Awaited> words_;
};

// A writer that has stored its counter and seen the sleeper rings within this time, even on a busy
// machine that runs another thread between the two. After a lost wake-up nobody rings, so the
// sleeper waits in vain: for half the time after each one that this process has counted.
std::uint64_t longest_before_ring() {
  constexpr std::uint64_t kFirst = 100'000'000;
  return kFirst >> std::min<std::uint64_t>(lost().load(std::memory_order_relaxed), 32);
}

// After a sleep that ended by its limit: returns whether a counter has been reached without a ring.
// If a writer has yet to ring, sleeps until it does; it still sees a sleeper.
bool has_lost(std::span<const Awaited> words, std::span<const std::uint32_t> rings_before) {
  const std::uint64_t end = kernel_ns() + longest_before_ring();
  for (std::size_t i = 0; i < words.size(); ++i) {
    while (words[i].reached() && words[i].bell->rings.load() == rings_before[i]) {
      const std::uint64_t now = kernel_ns();
      if (now >= end) return true;
      const timespec left = timespec_of(end - now);
      futex(words[i].bell->rings, FUTEX_WAIT, rings_before[i], &left);
    }
  }
  return false;
}

}  // namespace

void allow_barriers() { can_make_barriers(); }

void ring(Bell& bell) {
  bell.rings.fetch_add(1, std::memory_order_acq_rel);
  futex(bell.rings, FUTEX_WAKE, INT_MAX, nullptr);
}

void Sleep::wake(std::atomic<std::uint32_t>& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

void Sleep::until_any(std::span<const Awaited> words, std::atomic<std::uint32_t>* wake,
                      std::uint32_t unchanged, std::uint64_t limit_ns) {
  if (words.size() > kMostWords) {
    words = words.first(kMostWords);
    limit_ns = std::min(limit_ns, kBlindNs);
  }
  Futexes futexes;
  std::array<std::uint32_t, kMostWords> rings;
  const SleepingFor sleeping(words);
  for (std::size_t i = 0; i < words.size(); ++i) {
    rings[i] = words[i].bell->rings.load(std::memory_order_acquire);
    futexes.add(words[i].bell->rings, rings[i]);
  }
  if (wake != nullptr) futexes.add(*wake, unchanged);
  if (std::ranges::any_of(words, &Awaited::reached)) return;
  if (!words.empty()) the_sleeps.fetch_add(1, std::memory_order_relaxed);
  if (!futexes.wait(limit_ns) || words.empty()) return;
  the_ended_by_limit.fetch_add(1, std::memory_order_relaxed);
  if (has_lost(words, {rings.data(), words.size()})) {
    lost().fetch_add(1, std::memory_order_relaxed);
  }
}

Sleep::Counts Sleep::counts() {
  return {the_sleeps.load(std::memory_order_relaxed),
          the_ended_by_limit.load(std::memory_order_relaxed),
          lost().load(std::memory_order_relaxed)};
}

void Sleep::count_lost_at(std::uint64_t& shown) {
  std::atomic_ref(shown).fetch_add(lost().load(std::memory_order_relaxed));
  the_lost.store(&shown, std::memory_order_release);
}

}  // namespace gradred
