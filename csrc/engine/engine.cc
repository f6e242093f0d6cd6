#include "engine/engine.h"

#include <time.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::uint64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
// Between two looks at operations that have to be polled, the thread naps at least this many times
// as long as the last look took. So it uses at most 20 % of a core. While nothing advances, each
// nap is a quarter longer than the one before. So the thread finds an event late by at most about a
// fifth of the time that the event took to come.
constexpr std::uint64_t kRest = 4;
// A look that takes longer than this, plus the second constant for each operation, has moved or
// reduced data, as in sockets of the MPI. The next look then follows at once. A look that finds
// nothing takes some microseconds.
constexpr std::uint64_t kLongestLook = 10 * kMicrosecond, kLongestOfEach = kMicrosecond;
constexpr std::uint64_t kShortestNap = 20 * kMicrosecond, kLongestNap = 2 * kMillisecond;
// With nothing to do, the thread naps once before it sleeps without a limit. Most operations follow
// others, and waking the thread for each would cost more than a small operation. More naps would
// take the core from a program that computes (docs/design/engine.md).
constexpr std::uint64_t kIdleNap = 500 * kMicrosecond;
constexpr int kIdleNaps = 1;
// For a program that waits for all that it starts: there the thread would only take the core from
// it.
constexpr std::uint64_t kAttendedNap = 4 * kMillisecond;
constexpr int kAttendedNaps = 3;
// A program that waits so soon after a start, or after another wait, has left nothing to the
// thread. One that starts several short operations in a row gets as much time as a nap lasts.
constexpr std::uint64_t kAtOnce = 50 * kMicrosecond;
// A program that waits for many operations, one after the other, wakes the thread this often at
// most.
constexpr std::uint64_t kBetweenWaits = 200 * kMicrosecond;
// From this size on the thread is woken at once, if the program has left the last operations to it.
// A long operation takes many times as long as waking a thread. If the program waits at once, a
// thread that looks takes the core from it or from a peer.
constexpr std::size_t kWorthWaking = std::size_t{1} << 20;
// The longest sleep on words of peers in shared memory. Then the thread looks whether the peers
// live.
constexpr std::uint64_t kLongestSleep = 100 * kMillisecond;

thread_local bool is_engines = false;

// Processor time of this thread, without the time in which other threads had the core.
std::uint64_t thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace

bool Engine::in_its_thread() { return is_engines; }

void Engine::add(std::shared_ptr<Operation> operation, Driven driven) {
  const std::lock_guard lock(mutex_);
  const bool threaded = driven == Driven::kByThread;
  if (threaded && !thread_.joinable()) start_thread();
  // A thread that sleeps on the words of other operations would miss the words of this one.
  const bool left = operation->is_left();
  if (left) unattended_ = true;
  const bool soon = left || asleep_ || at_bells_.load(std::memory_order_relaxed) ||
                    (unattended_ && operation->bytes() >= kWorthWaking);
  operations_.push_back({std::move(operation), driven});
  kept_.store(operations_.size());  // see hand_back()
  ++added_;
  if (left) {
    nap_ns_ = kShortestNap;
    added_ns_ = 0;
  } else if (waiting_.load() == 0) {  // a start by a waiting thread does not count
    count_start(operations_.back().operation->bytes());
  }
  idle_ = 0;
  if (threaded && (left || (soon && waiting_.load() == 0))) wake();
}

void Engine::count_start(std::size_t bytes) {
  if (added_ns_.load(std::memory_order_relaxed) == 0) return begin_grace(bytes);
  last_added_ns_ = now_ns();
  longest_ = std::max(longest_, bytes);
  grace_ns_ = longest_ >= kWorthWaking ? kAtOnce : kIdleNap;
}

void Engine::count_more(std::size_t bytes) {
  if (added_ns_.load(std::memory_order_relaxed) == 0) return;  // the thread has looked since
  const std::lock_guard lock(mutex_);
  if (added_ns_.load(std::memory_order_relaxed) != 0 && waiting_.load() == 0) count_start(bytes);
}

void Engine::begin_grace(std::size_t bytes) {
  const std::uint64_t now = now_ns();
  added_ns_ = last_added_ns_ = now;
  longest_ = bytes;
  grace_ns_ = kAtOnce;
}

void Engine::start_thread() {
  stopping_ = false;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw TransportError(std::string("the thread that drives operations cannot be started: ") +
                         error.what() +
                         ". Allow more memory or threads, or set GRADRED_PROGRESS_THREAD=0");
  }
}

void Engine::progress() {
  if (quiet()) return;
  bool any_ended = false;
  for (const Kept& kept : snapshot()) any_ended |= static_cast<bool>(kept.operation->advance());
  if (any_ended) drop_ended();
}

int Engine::progress_in_mpi() {
  if (quiet()) return 0;
  int ended = 0;
  for (const Kept& kept : snapshot()) {
    if (!kept.operation->may_advance_in_mpi() || kept.operation->ended()) continue;
    if (kept.operation->advance(Operation::Caller::kInMpi)) ++ended;
  }
  if (ended > 0) drop_ended();
  return ended;
}

// ---- the progress thread ------------------------------------------------------------------------

void Engine::run() {
  is_engines = true;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (std::ranges::none_of(operations_, drives)) {
      drop_ended(lock);
      rest(lock);
    } else if (waiting_.load(std::memory_order_relaxed) > 0) {  // the waiter advances all of them
      if (std::ranges::any_of(operations_, is_left)) {
        drive_left(lock);
      } else {
        leave_to_waiters(lock);
      }
    } else if (is_just_added()) {  // the program may wait at once
      sleep(lock, {}, grace_ns_);
    } else {
      unattended_ = true;
      added_ns_ = 0;
      lock.unlock();
      look_and_sleep();
      lock.lock();
    }
  }
}

// Advances the operations that streams of the program wait for, while another thread waits. That
// thread may be in a call of the device's driver that returns when a stream has gone on, and the
// stream may wait for one of these operations. Other threads destroy the operations that have
// ended, because that may need the driver as well.
void Engine::drive_left(std::unique_lock<std::mutex>& lock) {
  std::vector<std::shared_ptr<Operation>> left;
  for (const Kept& kept : operations_) {
    if (is_left(kept)) left.push_back(kept.operation);
  }
  lock.unlock();
  for (const auto& operation : left) operation->advance(Operation::Caller::kBusy);
  lock.lock();
  nap(lock, nap_ns_ + nap_ns_ / 4);
  lock.unlock();
  left.clear();  // these may be the last references
  lock.lock();
}

void Engine::leave() {
  const std::lock_guard lock(mutex_);
  unattended_ = true;
  added_ns_ = 0;
  nap_ns_ = kShortestNap;
  if (idles_) wake();
}

bool Engine::is_just_added() const {
  const std::uint64_t added = added_ns_;
  return added != 0 && now_ns() - added < grace_ns_;
}

void Engine::look_and_sleep() {
  const Look found = look();  // its references are released after the lock
  std::unique_lock lock(mutex_);
  if (stopping_ || !found.any || added_ != found.added) return;
  if (found.polls) {
    if (found.took_ns > kLongestLook + found.looked_at * kLongestOfEach) {
      nap_ns_ = kShortestNap;
      return;
    }
    if (std::exchange(stops_, found.stops) != found.stops) nap_ns_ = 0;
    nap(lock, std::max(kRest * found.took_ns, nap_ns_ + nap_ns_ / 4));
  } else {
    sleep_for(lock, found.words);
  }
}

// Called while no thread of this process waits, as far as the engine knows.
Engine::Look Engine::look() {
  Look found;
  const std::uint64_t begin = thread_cpu_ns();
  bool any_ended = false;
  std::vector<Kept> all;
  {
    const std::lock_guard lock(mutex_);
    all = operations_;
    found.added = added_;
  }
  for (const Kept& kept : all) {
    if (!drives(kept)) continue;
    ++found.looked_at;
    const Progress progress = kept.operation->advance();
    any_ended |= static_cast<bool>(progress);
    if (progress) continue;
    found.stops += kept.operation->stops() + 1;
    kept.operation->look_after();
    found.any = true;
    if (progress.state != Progress::State::kAwaits) {
      found.polls = true;
    } else if (std::ranges::find(found.words, progress.awaited.word, &Awaited::word) ==
               found.words.end()) {
      found.words.push_back(progress.awaited);
      found.owners.push_back(kept.operation);
    }
  }
  if (any_ended) drop_ended();
  found.took_ns = thread_cpu_ns() - begin;
  return found;
}

// For a thread that has nothing to do.
void Engine::rest(std::unique_lock<std::mutex>& lock) {
  nap_ns_ = kShortestNap;
  asleep_ = ++idle_ > (unattended_ ? kIdleNaps : kAttendedNaps);
  sleep_idle(lock);
}

// Sleeps until the waiting threads have gone. Without a limit only after a nap in which the program
// has started nothing: while it starts operations one after the other, each would have to wake the
// thread.
void Engine::leave_to_waiters(std::unique_lock<std::mutex>& lock) {
  if (handed_back_) {
    handed_back_ = false;
    return sleep(lock, {}, kBetweenWaits);
  }
  asleep_ = left_to_waiters_ == added_;
  left_to_waiters_ = added_;
  sleep_idle(lock);
}

void Engine::sleep_idle(std::unique_lock<std::mutex>& lock) {
  idles_ = true;
  sleep(lock, {}, asleep_ ? Sleep::kForever : idle_nap());
  idles_ = asleep_ = false;
}

std::uint64_t Engine::idle_nap() const { return unattended_ ? kIdleNap : kAttendedNap; }

void Engine::nap(std::unique_lock<std::mutex>& lock, std::uint64_t wanted_ns) {
  nap_ns_ = std::clamp(wanted_ns, kShortestNap, kLongestNap);
  sleep(lock, {}, nap_ns_);
}

// Peers that reach one of the words wake the thread. If another thread has begun to wait, that
// thread advances the operations, and this one does not sleep.
void Engine::sleep_for(std::unique_lock<std::mutex>& lock, const std::vector<Awaited>& words) {
  nap_ns_ = kShortestNap;
  at_bells_.exchange(true);
  if (waiting_.load() == 0) sleep(lock, words, kLongestSleep);
  at_bells_.store(false);
}

void Engine::sleep(std::unique_lock<std::mutex>& lock, std::span<const Awaited> words,
                   std::uint64_t limit_ns) {
  const std::uint32_t unchanged = wake_.load(std::memory_order_relaxed);
  sleeps_ = true;
  lock.unlock();
  Sleep::until_any(words, &wake_, unchanged, limit_ns);
  lock.lock();
  sleeps_ = false;
}

// Called with mutex_ held.
void Engine::wake() {
  if (!sleeps_) return;
  wake_.fetch_add(1, std::memory_order_relaxed);
  Sleep::wake(wake_);
}

// ---- threads that wait --------------------------------------------------------------------------

void Engine::take_over() {
  waiting_.fetch_add(1);
  if (added_ns_.load(std::memory_order_relaxed) != 0) {
    const std::uint64_t added = added_ns_.exchange(0, std::memory_order_relaxed);
    if (added != 0) unattended_ = now_ns() - last_added_ns_ > kAtOnce;
  }
  if (!at_bells_.load()) return;
  const std::lock_guard lock(mutex_);
  if (at_bells_.load()) wake();
}

// From now on the progress thread advances what is still in flight. It is not woken for a program
// that waits again at once, as one does that waits for all that it starts: there the thread naps.
// If another thread adds an operation at this moment, then add() sees that nobody waits, or
// hand_back() sees the operation.
void Engine::hand_back() {
  if (waiting_.fetch_sub(1) != 1 || kept_.load() == 0) return;
  const std::lock_guard lock(mutex_);
  if (!idles_ || !(asleep_ || unattended_)) return;
  if (std::ranges::none_of(operations_, drives)) return;
  handed_back_ = true;
  begin_grace(0);
  wake();
}

// ---- the end ------------------------------------------------------------------------------------

void Engine::settle(std::chrono::nanoseconds limit, std::chrono::nanoseconds others) noexcept {
  const std::uint64_t begin = now_ns();
  const std::uint64_t end = begin + static_cast<std::uint64_t>(limit.count());
  const std::uint64_t end_of_others = begin + static_cast<std::uint64_t>(others.count());
  const auto pending = [&] {
    const bool all = now_ns() < end_of_others;
    return std::ranges::any_of(snapshot(), [all](const Kept& kept) {
      return (all || kept.operation->must_end()) && !kept.operation->ended();
    });
  };
  while (pending() && now_ns() < end) {
    progress();
    std::this_thread::yield();
  }
}

void Engine::stop(std::string_view why) noexcept {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    thread.swap(thread_);
    wake();
  }
  if (thread.joinable()) thread.join();
  for (const Kept& kept : snapshot()) {
    kept.operation->abandon(
        std::make_exception_ptr(PeerLost(std::string(why) + ", with the operation in flight")));
  }
  drop_ended();
}

std::size_t Engine::in_flight() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(
      operations_, [](const Kept& kept) { return !kept.operation->ended(); }));
}

std::vector<Engine::Kept> Engine::snapshot() {
  const std::lock_guard lock(mutex_);
  return operations_;
}

void Engine::drop_ended() {
  std::unique_lock lock(mutex_);
  drop_ended(lock);
}

void Engine::drop_ended(std::unique_lock<std::mutex>& lock) {
  std::vector<Kept> ended;
  const auto middle = std::stable_partition(operations_.begin(), operations_.end(),
                                            [](auto& kept) { return !kept.operation->ended(); });
  ended.assign(std::make_move_iterator(middle), std::make_move_iterator(operations_.end()));
  operations_.erase(middle, operations_.end());
  kept_.store(operations_.size(), std::memory_order_relaxed);
  if (ended.empty()) return;
  lock.unlock();  // they are destroyed without the lock
  ended.clear();
  lock.lock();
}

}  // namespace gradred
