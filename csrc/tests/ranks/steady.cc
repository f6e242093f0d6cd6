// Cost of a repeated call: it must not allocate heap memory, and may take one lock at most.
//
// This program counts in its own operator new and pthread_mutex_lock. MPI is not counted: it
// allocates by malloc, and calls pthread_mutex_lock from its own library.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "base/clock.h"
#include "program.h"

extern "C" const char __executable_start,
    etext;  // set by the linker: bounds of this program's code

namespace {

struct Counts {
  unsigned allocations = 0, locks = 0;
};
thread_local bool counts_now = false;
thread_local Counts counted;

// nullptr: no memory is left.
void* given(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  if (counts_now) ++counted.allocations;
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + alignment - 1) & ~(alignment - 1);
  return std::aligned_alloc(alignment, whole);
}

void* allocated(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  void* const memory = given(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// Not inlined, as GCC would report a mismatch if it saw free() of memory from operator new.
[[gnu::noinline]] void release(void* memory) noexcept { std::free(memory); }

using Lock = int (*)(pthread_mutex_t*);

int counted_lock(std::atomic<Lock>& next, const char* name, pthread_mutex_t* mutex,
                 const void* caller) {
  if (next == nullptr) next = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, name));
  if (counts_now && caller >= &__executable_start && caller < &etext) ++counted.locks;
  return next.load()(mutex);
}

std::atomic<Lock> next_lock{nullptr}, next_trylock{nullptr};

}  // namespace

void* operator new(std::size_t bytes) { return allocated(bytes); }
void* operator new[](std::size_t bytes) { return allocated(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocated(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocated(bytes, static_cast<std::size_t>(alignment));
}
// All forms are replaced. Otherwise a sanitizer's operator new could allocate memory released here.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return given(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return given(bytes); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return given(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t&) noexcept {
  return given(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

extern "C" [[gnu::visibility("default"), gnu::noinline]] int pthread_mutex_lock(
    pthread_mutex_t* mutex) noexcept {
  return counted_lock(next_lock, "pthread_mutex_lock", mutex, __builtin_return_address(0));
}
extern "C" [[gnu::visibility("default"), gnu::noinline]] int pthread_mutex_trylock(
    pthread_mutex_t* mutex) noexcept {
  return counted_lock(next_trylock, "pthread_mutex_trylock", mutex, __builtin_return_address(0));
}

namespace gradred::testing {
namespace {

constexpr std::size_t kMostElements = 16384;

class Steady {
 public:
  explicit Steady(Communicator& comm)
      : comm_(comm),
        send_(kMostElements * static_cast<std::size_t>(comm.size()), 1.0F),
        recv_(send_.size()) {}

  void all_kinds() {
    for (const std::size_t count : {std::size_t{2}, std::size_t{256}, kMostElements}) {
      const std::string of = " of " + std::to_string(count);
      steady("allreduce" + of, {.in = {send_.data()}, .count = count});
      steady("allreduce in place" + of, {.count = count});
      steady("persistent allreduce" + of,
             {.in = {send_.data()}, .count = count, .persistent = true});
      steady("premul" + of, {.in = {send_.data()}, .count = count, .op = Op::kPremul});
      steady("average" + of, {.in = {send_.data()}, .count = count, .op = Op::kAvg});
      steady("ring" + of, {.in = {send_.data()}, .count = count, .plan = "ring"});
      steady("reduce_scatter_block" + of,
             {.kind = Kind::kReduceScatterBlock, .in = {send_.data()}, .count = count});
      steady("allgather" + of, {.kind = Kind::kAllgather, .in = {send_.data()}, .count = count});
      // The agreement before it is one more operation.
      steady("bcast" + of, {.kind = Kind::kBcast, .count = count}, 2);
    }
    std::fflush(stdout);
    expect(!failed_, "steady calls allocate, or take locks");
  }

 private:
  // A rank that waits for 50 ms notifies its peers, which receive this in the same call or soon
  // after. This happens if ranks share cores with other programs. So a call counts only if the call
  // and those before it were short on all ranks. Even then, one call in 50 ms checks whether the
  // peers live, and one call per peer receives such a check. These calls cost more. No other call
  // may, and never half of the calls.
  static constexpr std::size_t kCalls = 200, kLater = 3, kFewest = 20;
  static constexpr double kShort = 0.04;  // seconds

  struct Taken {
    Counts counts;
    double seconds = 0;
  };

  // The longest duration of each call on any rank.
  void agree_on_longest(std::vector<Taken>& all) {
    std::vector<double> seconds;
    for (const Taken& one : all) seconds.push_back(one.seconds);
    PlainWait hook;
    comm_.run({.out = {seconds.data()},
               .count = seconds.size(),
               .dtype = DType::kFloat64,
               .op = Op::kMax},
              hook);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].seconds = seconds[i];
  }

  void steady(const std::string& name, Call call, unsigned locks = 1) {
    call.out.data = recv_.data();
    call.dtype = DType::kFloat32;
    for (int time = 0; time < 20; ++time) carry_out(call);
    std::vector<Taken> all(kCalls);
    for (Taken& one : all) {
      counted = {};
      const std::uint64_t begin = now_ns();
      counts_now = true;
      carry_out(call);
      counts_now = false;
      one = {counted, 1e-9 * static_cast<double>(now_ns() - begin)};
    }
    agree_on_longest(all);
    judge(name, all, locks);
  }

  void judge(const std::string& name, const std::vector<Taken>& all, unsigned locks) {
    std::size_t undisturbed = 0, others = 0, since_long = kLater;
    double seconds = 0;
    Counts most;
    for (const Taken& one : all) {
      seconds += one.seconds;
      since_long = one.seconds < kShort ? since_long + 1 : 0;
      if (since_long <= kLater) continue;
      ++undisturbed;
      if (one.counts.allocations > 0 || one.counts.locks > locks) ++others;
      most = {std::max(most.allocations, one.counts.allocations),
              std::max(most.locks, one.counts.locks)};
    }
    std::printf("rank %d: %s: %zu of %zu calls take more; at most %u allocations, %u locks\n",
                comm_.rank(), name.c_str(), others, undisturbed, most.allocations, most.locks);
    const auto looks = static_cast<std::size_t>(seconds / 0.05) + 1;
    const auto ranks = static_cast<std::size_t>(comm_.size());
    failed_ = failed_ || others > std::min(ranks * looks, undisturbed / 2) || undisturbed < kFewest;
  }

  void carry_out(const Call& call) {
    PlainWait hook;
    call.persistent ? comm_.run_startable(call, hook) : comm_.run(call, hook);
  }

  Communicator& comm_;
  std::vector<float> send_, recv_;
  bool failed_ = false;
};

}  // namespace

void count_steady_calls(const Library&) {
  Steady(*Communicator::of(mpi::get().is.comm_world)).all_kinds();
}

}  // namespace gradred::testing
