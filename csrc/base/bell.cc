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

// As linux/futex.h has it since 5.16; older headers lack it.
struct FutexOfMany {
  std::uint64_t value, address;
  std::uint32_t flags, reserved;
};
constexpr std::uint32_t kOf32Bits = 2;
constexpr long kFutexWaitv = 449;  // on every architecture
constexpr std::size_t kMostWords = 64;

timespec timespec_of(std::uint64_t nanoseconds) {
  return {static_cast<time_t>(nanoseconds / 1'000'000'000),
          static_cast<long>(nanoseconds % 1'000'000'000)};
}

// Not FUTEX_PRIVATE: the word lies in memory that processes share.
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

// All futexes that one thread sleeps on.
class Futexes {
 public:
  void add(std::atomic<std::uint32_t>& word, std::uint32_t value) {
    words_[count_] = &word;
    all_[count_++] = {value, reinterpret_cast<std::uint64_t>(&word), kOf32Bits, 0};
  }

  void wait(std::uint64_t limit_ns) {
    const bool several = count_ > 1;
    if (several && !kernel_waits_for_several()) limit_ns = std::min(limit_ns, Sleep::kBlindNs);
    const bool ends = limit_ns != Sleep::kForever;
    if (several && kernel_waits_for_several()) {
      const timespec end = timespec_of(ends ? kernel_ns() + limit_ns : 0);
      syscall(kFutexWaitv, all_.data(), count_, 0, ends ? &end : nullptr, CLOCK_MONOTONIC);
    } else {
      const timespec limit = timespec_of(limit_ns);
      futex(*words_[0], FUTEX_WAIT, static_cast<std::uint32_t>(all_[0].value),
            ends ? &limit : nullptr);
    }
  }

 private:
  std::array<FutexOfMany, kMostWords + 1> all_;
  std::array<std::atomic<std::uint32_t>*, kMostWords + 1> words_;
  std::uint32_t count_ = 0;
};

}  // namespace

void allow_barriers() { can_make_barriers(); }

// A writer stores the word, then looks whether sleepers are expected; we do it the other way round.
// The barrier, on all cores where ranks run, comes between the two steps of each, so that one sees
// the other. Where the kernel does not make it, the writer's store may stay on its way for a moment
// after it has looked; nobody knows how long, and so this waits for much longer than it can take.
ExpectSleepers::ExpectSleepers(SleepersExpected* expected) : expected_(expected) {
  if (expected == nullptr) return;
  expected->fetch_add(1, std::memory_order_seq_cst);
  if (can_make_barriers() && membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0) return;
  constexpr timespec kLong{0, 1'000'000};
  nanosleep(&kLong, nullptr);
}

void ring(Bell& bell) {
  bell.rings.fetch_add(1, std::memory_order_acq_rel);
  futex(bell.rings, FUTEX_WAKE, INT_MAX, nullptr);
}

void Sleep::wake(std::atomic<std::uint32_t>& word) { futex(word, FUTEX_WAKE, INT_MAX, nullptr); }

// A sleeper counts itself, then looks at the word once more; a writer stores the word, then looks
// at the count. Both change the count by a read-modify-write: who comes second sees the other.
void Sleep::until_any(std::span<const Awaited> words, std::atomic<std::uint32_t>* wake,
                      std::uint32_t unchanged, std::uint64_t limit_ns) {
  if (words.size() > kMostWords) {
    words = words.first(kMostWords);
    limit_ns = std::min(limit_ns, kBlindNs);
  }
  Futexes futexes;
  for (const Awaited& one : words) {
    one.bell->sleepers.fetch_add(1, std::memory_order_acq_rel);
    futexes.add(one.bell->rings, one.bell->rings.load(std::memory_order_acquire));
  }
  if (wake != nullptr) futexes.add(*wake, unchanged);
  if (std::ranges::none_of(words, &Awaited::reached)) futexes.wait(limit_ns);
  for (const Awaited& one : words) one.bell->sleepers.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace gradred
