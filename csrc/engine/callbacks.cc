#include "engine/callbacks.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/errors.h"

namespace gradred {
namespace {

// The most threads of callbacks, and so the most callbacks that may wait at one time.
constexpr std::size_t kMostThreads = 64;
// A callback that takes longer than this may be waiting: another thread then calls the next one.
constexpr auto kShort = std::chrono::milliseconds(1);

thread_local std::size_t depth = 0;                  // callbacks running in this thread
thread_local const Operation* waited_for = nullptr;  // the operation that this thread waits for

}  // namespace

DoneCallbacks& done_callbacks() {
  static auto* callbacks = new DoneCallbacks;  // never destroyed: its threads never end
  return *callbacks;
}

void DoneCallbacks::use_threads() {
  if (has_threads_) return;
  const std::lock_guard lock(mutex_);
  try {
    if (threads_ == 0) start_thread();
  } catch (const std::system_error& error) {
    throw TransportError(std::string("a thread that calls callbacks cannot be started: ") +
                         error.what() +
                         ". Allow more memory or threads, or set GRADRED_PROGRESS_THREAD=0");
  }
  has_threads_ = true;
}

void DoneCallbacks::start_thread() {
  std::thread([this] { run(); }).detach();
  ++threads_;
  ++spare_;
}

void DoneCallbacks::post(const Operation* operation, std::vector<DoneCallback> callbacks) noexcept {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back({operation, std::move(callbacks)});
    any_ = true;
  }
  if (operation != waited_for) posting_.notify_one();
}

void DoneCallbacks::call(Lock& lock, std::deque<Posted>::iterator posted) {
  const std::vector<DoneCallback> callbacks = std::move(posted->callbacks);
  posted_.erase(posted);
  any_ = !posted_.empty();
  ++running_;
  lock.unlock();
  ++depth;
  const Operation* const waited_for_here = std::exchange(waited_for, nullptr);
  for (const DoneCallback& callback : callbacks) callback();
  waited_for = waited_for_here;
  --depth;
  lock.lock();
  --running_;
  returning_.notify_all();
}

void DoneCallbacks::call_those_of(const Operation* operation) noexcept {
  if (!any_) return;
  Lock lock(mutex_);
  const auto found = std::ranges::find(posted_, operation, &Posted::operation);
  if (found != posted_.end()) call(lock, found);
}

void DoneCallbacks::call_all(Lock& lock) {
  while (!posted_.empty()) call(lock, posted_.begin());
}

void DoneCallbacks::call_without_threads() noexcept {
  if (!any_ || has_threads_) return;
  Lock lock(mutex_);
  call_all(lock);
}

void DoneCallbacks::finish(std::chrono::nanoseconds limit) noexcept {
  Lock lock(mutex_);
  call_all(lock);
  // The callbacks that this call is nested in return only after it.
  returning_.wait_for(lock, limit, [this] { return posted_.empty() && running_ <= depth; });
}

void DoneCallbacks::run() noexcept {
  Lock lock(mutex_);
  const auto nothing_left = [this] { return posted_.empty(); };
  while (true) {
    posting_.wait(lock, [this] { return !posted_.empty(); });
    // A thread that is in a callback takes the next one as well, if its callback returns soon.
    if (running_ > 0 && returning_.wait_for(lock, kShort, nothing_left)) continue;
    --spare_;
    try {
      if (spare_ == 0 && threads_ < kMostThreads) start_thread();
    } catch (const std::system_error&) {
      // No thread can be started: the callbacks that follow wait until this one returns.
    }
    call(lock, posted_.begin());
    ++spare_;
  }
}

DoneCallbacks::Waiter::Waiter(const Operation* operation)
    : before_(std::exchange(waited_for, operation)) {}

// A wait that was interrupted may have found the end and not called the callbacks. The threads call
// them.
DoneCallbacks::Waiter::~Waiter() {
  waited_for = before_;
  if (done_callbacks().any_) done_callbacks().posting_.notify_one();
}

}  // namespace gradred
