// A collective operation in flight. Any thread that has time may advance it: the user's Test and
// Wait, a wait for another operation, or the progress thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bell.h"
#include "base/wait_times.h"
#include "engine/callbacks.h"
#include "liveness/wait_record.h"

namespace gradred {

// How far advance() has brought an operation, and what it stopped for.
struct Progress {
  enum class State : std::uint8_t {
    kEnded,   // with or without an error
    kAwaits,  // waits for a word in shared memory; its writer wakes the threads that sleep on it
    kPolls,   // there is nothing to sleep on: a thread has to look again
    kTaken,   // another thread is advancing it
  };
  State state;
  Awaited awaited;                    // for kAwaits
  WaitCause what = WaitCause::kLine;  // for kPolls

  explicit operator bool() const { return state == State::kEnded; }
};

class Operation {
 public:
  virtual ~Operation() = default;

  enum class Caller : std::uint8_t {
    kBusy,     // has other work to do
    kPatient,  // waits for the operation: sleeps while another thread advances it
    kInMpi,    // is inside an MPI function, which gradred itself may have called
  };
  // Goes on as far as possible without blocking. Any thread may call it.
  Progress advance(Caller caller = Caller::kBusy) noexcept;
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // How often the operation has stopped for another reason than before. It grows as the operation
  // advances.
  std::uint64_t stops() const { return stops_.load(std::memory_order_relaxed); }
  // Throws the error that ended the operation, if there is one. Only after ended().
  void rethrow() const;
  bool failed() const { return failure_ != nullptr; }  // only after ended()
  // The error that ended the operation, or nullptr. Only after ended(), and in on_end().
  const std::exception_ptr& failure() const { return failure_; }
  // Calls `callback` once, after the end is visible, in a thread that holds no lock of gradred
  // (callbacks.h). If the operation has already ended, calls it at once. Any thread may add
  // callbacks at any time.
  void when_ended(DoneCallback callback);
  // Only after ended(): posts the callbacks, unless the thread that ended the operation has done
  // so.
  void post_callbacks() noexcept;
  // Posts and calls the callbacks, unless another thread calls them. For a thread that holds no
  // lock and has found that the operation has ended, perhaps before the thread that ended it has
  // posted them.
  void call_callbacks() noexcept {
    post_callbacks();
    done_callbacks().call_those_of(this);
  }
  // For reports by the waiting thread, while other threads may advance the operation. waiter()
  // names this rank. waits_for() describes the operation and the ranks that it waits for.
  // is_first_to_wait() decides whether this rank reports.
  virtual std::string waiter() const = 0;
  virtual std::string waits_for() const = 0;
  virtual bool is_first_to_wait() const { return true; }
  virtual WaitRecord wait_record() const { return {}; }  // the same in numbers
  // Called by the progress thread, again and again, while it advances the operation.
  virtual void look_after() noexcept {}
  // Whether a program that ends should first complete the operation, because peers wait for it.
  virtual bool must_end() const { return false; }
  // Whether it goes on without any MPI call, so that every thread may advance it.
  virtual bool needs_no_mpi() const { return false; }
  // How much this rank moves. For a large operation a waiting thread releases locks
  // (WaitHook::long_work()), and the progress thread is woken at once.
  virtual std::size_t bytes() const { return 0; }
  // Whether it is left to the progress thread, because no thread of the program waits for it.
  virtual bool is_left() const { return false; }
  // Whether MPI functions that wait or test may advance it from inside.
  virtual bool may_advance_in_mpi() const { return needs_no_mpi(); }
  // Whether each rank has a core of its own, so that a waiting thread may keep its core.
  virtual bool spins() const { return false; }
  // Ends the operation with an error. The memory that it held is the caller's again.
  void abandon(std::exception_ptr reason) noexcept;
  // Measures where the operation's time goes, from `since_ns` on. Only before the first advance().
  void measure(std::uint64_t since_ns) { wait_clock_ = std::make_unique<WaitClock>(since_ns); }
  // No other thread knows the operation, now or later: it takes no lock and has no callbacks.
  void stay_private() { private_ = true; }

 protected:
  virtual bool step() = 0;  // goes on as far as possible; true when complete; may throw
  Caller caller() const { return caller_; }  // of the current step()
  // For step(), before it returns false: why it cannot go on. Without this, advance() returns
  // kPolls.
  void stop_at(const Progress& why) { stopped_ = why; }
  bool stopped_to_sleep() const { return stopped_.state == Progress::State::kAwaits; }
  virtual void give_up(const std::exception_ptr&) noexcept { withdraw(); }  // called by abandon()
  virtual void withdraw() noexcept = 0;           // called after step() has thrown, or to give up
  virtual void on_end(bool /*well*/) noexcept {}  // called once, before the end is visible
  void end(std::exception_ptr failure) noexcept;  // only while no other thread advances it
  // Lets an operation that has ended well begin anew. No other thread may hold it.
  void renew() { ended_.store(false, std::memory_order_relaxed); }
  WaitClock* wait_clock() const { return wait_clock_.get(); }  // nullptr if nothing measures it

 private:
  void note_stop(const Progress& before);

  bool private_ = false;
  std::mutex mutex_;
  Caller caller_ = Caller::kBusy;  // of the current step
  Progress stopped_{};
  std::atomic<std::uint64_t> stops_{0};
  std::atomic<bool> ended_{false};
  std::exception_ptr failure_;
  std::unique_ptr<WaitClock> wait_clock_;
  std::mutex callbacks_mutex_;  // its own, since mutex_ is held throughout a step
  std::vector<DoneCallback> callbacks_;
};

}  // namespace gradred
