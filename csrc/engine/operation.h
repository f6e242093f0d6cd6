// A collective operation in flight, driven by whoever has time: the user's Test and Wait, another
// operation that waits, the progress thread.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "engine/callbacks.h"

namespace gradred {

class Operation {
 public:
  virtual ~Operation() = default;

  // Goes on as far as possible without blocking. True once the operation has ended, well or not.
  // Any thread may call it; while one thread is at it, the others are told "not yet".
  bool advance() noexcept;
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Throws what ended the operation, if it did not end well. Only after ended().
  void rethrow() const;
  bool failed() const { return failure_ != nullptr; }  // only after the end
  // `callback` is called once, after the end is visible, by a thread that holds no lock of
  // gradred's (callbacks.h); at once where the operation has ended. Any thread may add one, at any
  // time.
  void when_ended(DoneCallback callback);
  // This rank, what it is and whom it waits for, in words, and whether this rank should be the one
  // to say so. For the thread that waits, while others may advance it.
  virtual std::string waiter() const = 0;
  virtual std::string waits_for() const = 0;
  virtual bool is_first_to_wait() const { return true; }
  // By the progress thread, again and again while it drives the operation.
  virtual void look_after() noexcept {}
  // Whether a program that ends should see it through: peers wait for it.
  virtual bool must_end() const { return false; }
  // Ends it with an error; what it held is the caller's again.
  void abandon(std::exception_ptr reason) noexcept;

 protected:
  virtual bool step() = 0;  // as far as possible; true when complete; may throw
  virtual void give_up(const std::exception_ptr&) noexcept { withdraw(); }  // abandon() early
  virtual void withdraw() noexcept = 0;           // after step() has thrown, or to give up
  virtual void on_end(bool /*well*/) noexcept {}  // once, before the end is visible
  // In on_end(), where it did not end well.
  const std::exception_ptr& failure() const { return failure_; }

 private:
  void end(std::exception_ptr failure) noexcept;
  void post_callbacks() noexcept;

  std::mutex mutex_;
  std::atomic<bool> ended_{false};
  std::exception_ptr failure_;
  std::mutex callbacks_mutex_;  // mutex_ is held throughout a step
  std::vector<DoneCallback> callbacks_;
};

}  // namespace gradred
