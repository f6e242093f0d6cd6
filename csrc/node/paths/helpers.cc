#include "node/paths/helpers.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "base/bell.h"
#include "base/clock.h"
#include "base/core.h"
#include "base/tell_once.h"
#include "node/memory/layout.h"

namespace gradred {
namespace {

// The time after a slice for which a helper looks for the next one.
constexpr std::uint64_t kLookFor = 50'000;

// Values of a helper's word. The caller offers, takes back, and sends to rest or to its end; the
// helper takes, then is idle again, or falls asleep.
enum Word : std::uint32_t { kIdle, kOffered, kTaken, kRest, kAsleep, kEnd };

// A forked child has none of its parent's threads.
constinit std::atomic<Helpers*> helpers_of_process{nullptr};

}  // namespace

struct alignas(kApart) Helpers::Helper {
  std::atomic<std::uint32_t> word{kIdle};
  std::size_t index = 0;  // of its slices
  std::exception_ptr error;
  std::thread thread;

  void say(Word what) {
    if (word.exchange(what, std::memory_order_acq_rel) == kAsleep) Sleep::wake(word);
  }
  bool change(std::uint32_t from, Word to) {
    return word.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
  void await_end_of_slice() const {
    constexpr unsigned kLooks = 4000;
    for (unsigned look = 0; word.load(std::memory_order_acquire) == kTaken; ++look) {
      look < kLooks ? relax() : yield_core();
    }
  }
};

Helpers& Helpers::of_this_process() {
  Helpers* found = helpers_of_process.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  [[maybe_unused]] static const int once =
      pthread_atfork(nullptr, nullptr, [] { helpers_of_process.store(nullptr); });
  auto made = std::make_unique<Helpers>();
  if (helpers_of_process.compare_exchange_strong(found, made.get())) found = made.release();
  return *found;  // never freed, since calls may follow the end of the program
}

void Helpers::run(std::size_t slices, Task task) {
  Helpers& all = of_this_process();
  std::exception_ptr failed;
  const auto attempt = [&](std::size_t index) noexcept {
    try {
      task.call(task.work, index);
    } catch (...) {
      if (failed == nullptr) failed = std::current_exception();
    }
  };
  const std::size_t helped = all.offer(slices - 1, task);
  attempt(0);
  for (std::size_t index = helped + 1; index < slices; ++index) attempt(index);
  for (std::size_t one = helped; one-- > 0;) {
    if (all.helpers_[one]->change(kOffered, kIdle)) attempt(one + 1);
  }
  for (std::size_t one = 0; one < helped; ++one) {
    all.helpers_[one]->await_end_of_slice();
    const std::exception_ptr theirs = std::exchange(all.helpers_[one]->error, nullptr);
    if (failed == nullptr) failed = theirs;
  }
  if (helped > 0) all.busy_.store(false, std::memory_order_release);
  if (failed != nullptr) std::rethrow_exception(failed);
}

// Returns how many helpers have got a slice each; if any, they are this caller's until it clears
// busy_.
std::size_t Helpers::offer(std::size_t slices, Task task) {
  if (busy_.exchange(true, std::memory_order_acquire)) return 0;
  if (helpers_.size() < slices && may_start_) start(slices);
  const std::size_t count = std::min(slices, helpers_.size());
  task_ = task;
  if (count == 0) busy_.store(false, std::memory_order_release);
  for (std::size_t one = 0; one < count; ++one) helpers_[one]->say(kOffered);
  return count;
}

void Helpers::may_run_on(const std::bitset<kMaxCores>& cores) {
  Helpers& all = of_this_process();
  const std::lock_guard lock(all.mutex_);
  all.cores_ |= cores;
}

// Helpers leave signals to the program's threads.
void Helpers::start(std::size_t helpers) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    helpers_.reserve(helpers);
    while (helpers_.size() < helpers) {
      auto made = std::make_unique<Helper>();
      Helper& helper = *made;
      helper.index = helpers_.size() + 1;
      helper.thread = std::thread([this, &helper] { serve(helper); });
      helpers_.push_back(std::move(made));
    }
  } catch (const std::exception& error) {
    may_start_ = false;
    tell_once("GRADRED_THREADS: only " + std::to_string(helpers_.size() + 1) +
              " threads work on long calls: " + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Helpers::serve(Helper& helper) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (cores_.any()) run_on(cores_);
  }
  std::uint64_t since = kernel_ns();
  while (true) {
    const std::uint32_t seen = helper.word.load(std::memory_order_acquire);
    if (seen == kEnd) return;
    if (seen == kOffered && helper.change(kOffered, kTaken)) {
      try {
        task_.call(task_.work, helper.index);
      } catch (...) {
        helper.error = std::current_exception();
      }
      helped_.fetch_add(1, std::memory_order_relaxed);
      since = helper.change(kTaken, kIdle) ? kernel_ns() : 0;
    } else if (seen == kAsleep) {
      Sleep::until_any({}, &helper.word, kAsleep, Sleep::kForever);
      since = kernel_ns();
    } else if (seen == kRest || kernel_ns() - since > kLookFor) {
      if (seen != kOffered) helper.change(seen, kAsleep);
    } else {
      relax();
    }
  }
}

void Helpers::rest() noexcept {
  Helpers* const all = helpers_of_process.load(std::memory_order_acquire);
  if (all == nullptr || all->busy_.exchange(true, std::memory_order_acquire)) return;
  for (const auto& helper : all->helpers_) helper->change(kIdle, kRest);
  all->busy_.store(false, std::memory_order_release);
}

void Helpers::stop() noexcept {
  Helpers* const all = helpers_of_process.load(std::memory_order_acquire);
  if (all == nullptr || all->ended_.exchange(true)) return;
  while (all->busy_.exchange(true, std::memory_order_acquire)) yield_core();
  for (const auto& helper : all->helpers_) helper->say(kEnd);
  for (const auto& helper : all->helpers_) helper->thread.join();
  all->helpers_.clear();
}

std::uint64_t Helpers::slices_helped() noexcept {
  const Helpers* const all = helpers_of_process.load(std::memory_order_acquire);
  return all != nullptr ? all->helped_.load(std::memory_order_relaxed) : 0;
}

std::size_t Helpers::asleep() noexcept {
  const Helpers* const all = helpers_of_process.load(std::memory_order_acquire);
  if (all == nullptr) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(
      all->helpers_, [](const auto& one) { return one->word.load() == kAsleep; }));
}

}  // namespace gradred
