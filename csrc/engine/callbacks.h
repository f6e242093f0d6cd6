// The callbacks of operations that have ended. The thread that ends an operation may hold locks, or
// may be inside a call that must not wait for a callback, so it only posts the callbacks here. They
// are called by the thread that waits for the operation, or by threads of their own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace gradred {

class Operation;

// Throws nothing. It may start operations, and wait for them.
using DoneCallback = std::function<void()>;

class DoneCallbacks {
 public:
  // From now on, threads of this class call the callbacks that no other thread calls. Throws
  // TransportError if no thread can be started.
  void use_threads();
  // Posts the callbacks of one operation, which are called one after the other.
  void post(const Operation* operation, std::vector<DoneCallback> callbacks) noexcept;
  // Calls the callbacks that are posted for `operation`, unless another thread calls them. The
  // calling thread holds no lock. See Operation::call_callbacks().
  void call_those_of(const Operation* operation) noexcept;
  // If no threads call callbacks, calls those of all operations. A callback that waits for an
  // operation calls other callbacks meanwhile.
  void call_without_threads() noexcept;
  // Calls all posted callbacks, then waits until other threads have returned from theirs. It waits
  // for `limit` at most, because a callback may wait for something that never comes.
  void finish(std::chrono::nanoseconds limit) noexcept;

  // While a Waiter lives, this thread waits for the operation and calls its callbacks if it finds
  // the end. Callbacks that this thread posts for it then wake no other thread.
  class Waiter {
   public:
    explicit Waiter(const Operation* operation);
    ~Waiter();
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

   private:
    const Operation* const before_;
  };

 private:
  struct Posted {
    const Operation* operation;
    std::vector<DoneCallback> callbacks;
  };
  using Lock = std::unique_lock<std::mutex>;

  void start_thread();
  void run() noexcept;
  void call(Lock& lock, std::deque<Posted>::iterator posted);
  void call_all(Lock& lock);

  std::mutex mutex_;
  std::condition_variable posting_, returning_;
  std::deque<Posted> posted_;
  std::atomic<bool> any_{false};  // posted_ is not empty
  std::atomic<bool> has_threads_{false};
  std::size_t threads_ = 0, spare_ = 0;  // started here; of these, those that are in no callback
  std::size_t running_ = 0;              // operations whose callbacks are being called
};

DoneCallbacks& done_callbacks();  // the only one of the process

}  // namespace gradred
