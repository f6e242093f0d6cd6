// A collective operation in flight, driven by whoever has time: the user's Test and Wait, another
// operation that waits, the progress thread.
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
#include "base/stood.h"
#include "engine/callbacks.h"
#include "liveness/wait_record.h"

namespace gradred {

// How far advance() has brought an operation.
struct Progress {
  enum class State : std::uint8_t {
    kEnded,   // well or not
    kAwaits,  // a word in shared memory, whose writer wakes those who sleep for it
    kPolls,   // nothing to sleep for: somebody has to look again
    kTaken,   // another thread is at it
  };
  State state;
  Awaited awaited;                  // kAwaits
  StoodFor what = StoodFor::kLine;  // kPolls

  explicit operator bool() const { return state == State::kEnded; }
};

class Operation {
 public:
  virtual ~Operation() = default;

  enum class Caller : std::uint8_t {
    kBusy,     // has other things to do
    kPatient,  // waits for it: sleeps while another thread is at it
    kInMpi,    // is inside a function of the MPI, which gradred itself may have called
  };
  // Goes on as far as possible without blocking. Any thread may call it.
  Progress advance(Caller caller = Caller::kBusy) noexcept;
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  // Grows as it gets on: whenever it stops for something else than before.
  std::uint64_t stops() const { return stops_.load(std::memory_order_relaxed); }
  // Throws what ended the operation, if it did not end well. Only after ended().
  void rethrow() const;
  bool failed() const { return failure_ != nullptr; }  // only after the end
  // `callback` is called once, after the end is visible, by a thread that holds no lock of
  // gradred's (callbacks.h); at once where the operation has ended. Any thread may add one, at any
  // time.
  void when_ended(DoneCallback callback);
  // After ended(): posts what it has of callbacks, unless whoever has ended it has done so.
  void post_callbacks() noexcept;
  // This rank, what it is and whom it waits for, in words, and whether this rank should be the one
  // to say so. For the thread that waits, while others may advance it.
  virtual std::string waiter() const = 0;
  virtual std::string waits_for() const = 0;
  virtual bool is_first_to_wait() const { return true; }
  virtual WaitRecord wait_record() const { return {}; }  // the same in numbers
  // By the progress thread, again and again while it drives the operation.
  virtual void look_after() noexcept {}
  // Whether a program that ends should see it through: peers wait for it.
  virtual bool must_end() const { return false; }
  // Whether it goes on without any call of the MPI, so that every thread may drive it.
  virtual bool needs_no_mpi() const { return false; }
  // What this rank has to move: who drives much lets go of locks, and it pays to begin at once.
  virtual std::size_t bytes() const { return 0; }
  // Whether it is left to the engine's thread: no thread of the program waits for it.
  virtual bool is_left() const { return false; }
  // Whether the MPI's functions that wait or test may advance it, from inside.
  virtual bool may_advance_in_mpi() const { return needs_no_mpi(); }
  // Whether each rank has a core of its own, so that who waits may keep it.
  virtual bool spins() const { return false; }
  // Ends it with an error; what it held is the caller's again.
  void abandon(std::exception_ptr reason) noexcept;
  // Where its time goes; since when it has been made. Before the first advance().
  void measure(std::uint64_t since_ns) { stood_ = std::make_unique<StoodClock>(since_ns); }
  // No other thread knows it, now or later: it takes no lock, and has no callbacks.
  void stay_private() { private_ = true; }

 protected:
  virtual bool step() = 0;                   // as far as possible; true when complete; may throw
  Caller caller() const { return caller_; }  // of step()
  // By step(), which then returns false: why it cannot go on. Else it has to be called again.
  void stop_at(const Progress& why) { stopped_ = why; }
  bool stopped_to_sleep() const { return stopped_.state == Progress::State::kAwaits; }
  virtual void give_up(const std::exception_ptr&) noexcept { withdraw(); }  // abandon() early
  virtual void withdraw() noexcept = 0;           // after step() has thrown, or to give up
  virtual void on_end(bool /*well*/) noexcept {}  // once, before the end is visible
  void end(std::exception_ptr failure) noexcept;  // nobody else advances it
  // It has ended well, nobody else holds it, and it begins anew.
  void renew() { ended_.store(false, std::memory_order_relaxed); }
  // In on_end(), where it did not end well.
  const std::exception_ptr& failure() const { return failure_; }
  StoodClock* stood() const { return stood_.get(); }  // null: nobody measures it

 private:
  void note_stop(const Progress& before);

  bool private_ = false;
  std::mutex mutex_;
  Caller caller_ = Caller::kBusy;  // of the step that is being made, and how it stopped
  Progress stopped_{};
  std::atomic<std::uint64_t> stops_{0};
  std::atomic<bool> ended_{false};
  std::exception_ptr failure_;
  std::unique_ptr<StoodClock> stood_;
  std::mutex callbacks_mutex_;  // mutex_ is held throughout a step
  std::vector<DoneCallback> callbacks_;
};

}  // namespace gradred
