// Threads that help the ranks of this process with their long calls (GRADRED_THREADS).
//
// A caller cuts its work into slices. It offers one to each helper, by a word of the helper's own,
// and works on the first one itself. Then it takes back what no helper has begun, so that one that
// gets no core delays nobody. Helpers start when they are first needed. After a slice they look for
// the next one for some microseconds, and sleep otherwise.
#pragma once

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "node/memory/cores.h"
#include "schedule/partition.h"

namespace gradred {

// Some of the elements of a vector.
struct Slice {
  std::size_t begin, count;
};

// Slices have whole cache lines, whatever the type, except for the last one.
inline Slice slice_of(std::size_t count, std::size_t slices, std::size_t index) {
  constexpr std::size_t kUnit = 64;
  const Partition parts{(count + kUnit - 1) / kUnit, slices};
  const std::size_t begin = std::min(count, parts.begin(index) * kUnit);
  return {begin, std::min(count - begin, parts.length(index) * kUnit)};
}

class Helpers {
 public:
  // Calls work(index) once for each index below `slices`, in as many threads at most. Returns when
  // all calls have ended, and throws what the first one that failed has thrown. Helpers serve one
  // caller at a time, and another one works alone.
  template <class Work>
  static void share(std::size_t slices, const Work& work) {
    const auto call = [](const void* made, std::size_t index) {
      (*static_cast<const Work*>(made))(index);
    };
    run(slices, {call, &work});
  }
  // Helpers that start later may run on these cores, too. Without any they run on those of the
  // thread that starts them, which may have been bound meanwhile.
  static void may_run_on(const std::bitset<kMaxCores>& cores);
  // After a call: helpers that look for a slice go to sleep.
  static void rest() noexcept;
  // At the end of the program: ends the threads. From then on callers work alone.
  static void stop() noexcept;
  // How many slices helpers have worked on so far, and how many of them sleep; for tests.
  static std::uint64_t slices_helped() noexcept;
  static std::size_t asleep() noexcept;

 private:
  struct Task {
    void (*call)(const void* work, std::size_t index);
    const void* work;
  };
  struct Helper;

  static Helpers& of_this_process();
  static void run(std::size_t slices, Task task);
  std::size_t offer(std::size_t slices, Task task);
  void start(std::size_t helpers);
  void serve(Helper& helper) noexcept;

  std::atomic<bool> busy_{false};  // a caller uses the helpers, or they have ended
  std::atomic<bool> ended_{false};
  bool may_start_ = true;
  Task task_{};
  std::mutex mutex_;  // of the cores
  std::bitset<kMaxCores> cores_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::atomic<std::uint64_t> helped_{0};
};

}  // namespace gradred
