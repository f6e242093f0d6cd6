#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#include "base/errors.h"

namespace gradred {
namespace {

using Clock = std::chrono::steady_clock;

// The thread sleeps this many times as long as its last look took: at most 5 % of a core.
constexpr int kRest = 20;
constexpr auto kShortestNap = std::chrono::microseconds(20);
constexpr auto kLongestNap = std::chrono::milliseconds(2);
// With nothing in flight it naps this often before it sleeps for good: most operations follow
// others, and to wake the thread for each would cost more than a small operation.
constexpr auto kIdleNap = std::chrono::microseconds(200);
constexpr int kIdleNaps = 50;

}  // namespace

void Engine::add(std::shared_ptr<Operation> operation, bool threaded) {
  const std::lock_guard lock(mutex_);
  if (threaded && !thread_.joinable()) start_thread();
  operations_.push_back(std::move(operation));
  if (threaded && asleep_) wake_.notify_one();
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
  bool any_ended = false;
  for (const auto& operation : snapshot()) any_ended |= operation->advance();
  if (any_ended) drop_ended();
}

// Nobody of ours waits, as far as we know.
void Engine::progress_unattended() {
  bool any_ended = false;
  for (const auto& operation : snapshot()) {
    const bool ended = operation->advance();
    if (!ended) operation->look_after();
    any_ended |= ended;
  }
  if (any_ended) drop_ended();
}

void Engine::run() {
  auto nap = Clock::duration(kShortestNap);
  int idle = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (operations_.empty()) {
      nap = kShortestNap;
      if (++idle <= kIdleNaps) {
        wake_.wait_for(lock, kIdleNap, [this] { return stopping_; });
        continue;
      }
      asleep_ = true;
      wake_.wait(lock, [this] { return stopping_ || !operations_.empty(); });
      asleep_ = false;
      continue;
    }
    idle = 0;
    lock.unlock();
    const auto begin = Clock::now();
    if (waiting_.load(std::memory_order_relaxed) == 0) progress_unattended();
    const auto rest = kRest * (Clock::now() - begin);
    nap = std::clamp<Clock::duration>(std::max<Clock::duration>(rest, nap + nap / 4), kShortestNap,
                                      std::max<Clock::duration>(rest, kLongestNap));
    lock.lock();
    wake_.wait_for(lock, nap, [this] { return stopping_; });
  }
}

void Engine::settle(std::chrono::nanoseconds limit) noexcept {
  const auto end = Clock::now() + limit;
  const auto pending = [this] {
    return std::ranges::any_of(snapshot(), [](const auto& operation) {
      return operation->must_end() && !operation->ended();
    });
  };
  while (pending() && Clock::now() < end) {
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
    wake_.notify_all();
  }
  if (thread.joinable()) thread.join();
  for (const auto& operation : snapshot()) {
    operation->abandon(
        std::make_exception_ptr(PeerLost(std::string(why) + ", with the operation in flight")));
  }
  drop_ended();
}

std::size_t Engine::in_flight() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::ranges::count_if(
      operations_, [](const auto& operation) { return !operation->ended(); }));
}

std::vector<std::shared_ptr<Operation>> Engine::snapshot() {
  const std::lock_guard lock(mutex_);
  return operations_;
}

void Engine::drop_ended() {
  std::vector<std::shared_ptr<Operation>> ended;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  const auto middle = std::stable_partition(operations_.begin(), operations_.end(),
                                            [](const auto& o) { return !o->ended(); });
  ended.assign(std::make_move_iterator(middle), std::make_move_iterator(operations_.end()));
  operations_.erase(middle, operations_.end());
}

}  // namespace gradred
