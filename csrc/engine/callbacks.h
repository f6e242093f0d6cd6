// Callbacks of operations that have ended. Who ends an operation may hold locks, or be deep in
// another call, which must not wait for what a callback does; so it only posts them here. They are
// called by the program's own wait for this very operation, or by threads of their own.
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

using DoneCallback = std::function<void()>;  // throws nothing; may start operations, and wait

class DoneCallbacks {
 public:
  // From now on threads call what nobody else does. Throws TransportError where none can be had.
  void use_threads();
  // Those of one operation, which are called one after the other.
  void post(const Operation* operation, std::vector<DoneCallback> callbacks) noexcept;
  // By a thread that holds no lock and has found the end of this operation, which whoever has ended
  // it may not have posted yet: calls its callbacks, unless another thread does.
  void call_those_of(Operation& operation) noexcept;
  // Where no threads call them: those of all operations. A callback that waits calls others.
  void call_without_threads() noexcept;
  // Calls what is posted, and waits until other threads have returned from theirs, but no longer
  // than this: a callback may wait for something that never comes.
  void finish(std::chrono::nanoseconds limit) noexcept;

  // While it lives this thread waits for the operation, and calls its callbacks if it finds its
  // end: no other need be woken.
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
  std::atomic<bool> any_{false};  // posted
  std::atomic<bool> has_threads_{false};
  std::size_t threads_ = 0, spare_ = 0;  // of their own; of these, those in no callback
  std::size_t running_ = 0;              // operations whose callbacks are being called
};

DoneCallbacks& done_callbacks();  // of the process

}  // namespace gradred
