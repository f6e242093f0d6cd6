// The operations in flight in this process, and the progress thread, which advances them while the
// program does not wait for them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/bell.h"
#include "engine/operation.h"

namespace gradred {

class Engine {
 public:
  // Who advances an operation while no thread waits for it: the progress thread, or only the
  // callers of progress().
  enum class Driven : std::uint8_t { kByThread, kByCalls };

  Engine() = default;
  ~Engine() { stop(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Keeps the operation alive until it has ended. Throws TransportError if the progress thread
  // cannot be started; the engine then does not take the operation.
  void add(std::shared_ptr<Operation> operation, Driven driven);
  // An operation in flight has been given more to do, of so many bytes. While the program gives it
  // more and more, the progress thread looks as late as if each part was an operation of its own.
  void count_more(std::size_t bytes);
  // Advances every operation in flight a little; never blocks.
  void progress();
  // The same from inside an MPI function, for the operations that may advance there. Returns how
  // many have ended.
  int progress_in_mpi();
  // Whether the calling thread is the progress thread.
  static bool in_its_thread();
  // Whether nothing is in flight. Cheap, for callers that ask often.
  bool quiet() const { return kept_.load(std::memory_order_relaxed) == 0; }

  // While a Waiting object lives, the progress thread leaves the work to the thread that waits. It
  // still advances operations that a stream of the program waits for.
  class Waiting {
   public:
    explicit Waiting(Engine& engine) : engine_(engine) { engine_.take_over(); }
    ~Waiting() { engine_.hand_back(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Engine& engine_;
  };
  // The program has left an operation that it waited for, and a stream of its waits for it now. The
  // progress thread goes on at once.
  void leave();
  // Advances the operations that a program must complete before it ends (Operation::must_end()),
  // for at most `limit`; the others too while less than `others` have passed.
  void settle(std::chrono::nanoseconds limit, std::chrono::nanoseconds others = {}) noexcept;
  // Ends the progress thread and abandons the operations in flight. The engine may be used again.
  void stop(std::string_view why = "a rank has left the program") noexcept;
  std::size_t in_flight();

 private:
  struct Kept {
    std::shared_ptr<Operation> operation;
    Driven driven;
  };
  // What the progress thread has found in one look at all operations.
  struct Look {
    bool any = false;         // one of the thread's operations has not ended
    bool polls = false;       // one of these has to be looked at again soon
    std::uint64_t added = 0;  // Engine::added_ when the look began
    std::vector<Awaited> words;
    std::vector<std::shared_ptr<Operation>> owners;  // keep the memory of the words alive
    std::uint64_t looked_at = 0;                     // operations
    // Sum over the operations that have not ended; it changes when one of them advances.
    std::uint64_t stops = 0;
    std::uint64_t took_ns = 0;  // processor time
  };

  void run();
  void look_and_sleep();
  void drive_left(std::unique_lock<std::mutex>& lock);
  Look look();
  void rest(std::unique_lock<std::mutex>& lock);
  void leave_to_waiters(std::unique_lock<std::mutex>& lock);
  void sleep_idle(std::unique_lock<std::mutex>& lock);
  void nap(std::unique_lock<std::mutex>& lock, std::uint64_t wanted_ns);
  void sleep_for(std::unique_lock<std::mutex>& lock, const std::vector<Awaited>& words);
  void sleep(std::unique_lock<std::mutex>& lock, std::span<const Awaited> words,
             std::uint64_t limit_ns);
  void wake();
  void take_over();
  void hand_back();
  std::uint64_t idle_nap() const;
  bool is_just_added() const;
  void count_start(std::size_t bytes);
  void begin_grace(std::size_t bytes);
  void start_thread();
  std::vector<Kept> snapshot();
  void drop_ended();
  void drop_ended(std::unique_lock<std::mutex>& lock);
  static bool drives(const Kept& kept) {
    return kept.driven == Driven::kByThread && !kept.operation->ended();
  }
  static bool is_left(const Kept& kept) { return drives(kept) && kept.operation->is_left(); }

  std::mutex mutex_;
  std::vector<Kept> operations_;
  std::atomic<std::size_t> kept_{0};  // operations_.size()
  std::thread thread_;
  bool stopping_ = false;
  std::atomic<int> waiting_{0};
  bool sleeps_ = false;  // the thread sleeps until wake_ changes, or until a limit
  bool asleep_ = false;  // the thread sleeps without a limit
  bool idles_ = false;   // it sleeps because nothing is in flight, or another thread waits for it
  bool handed_back_ = false;           // a thread that has stopped waiting woke it
  std::uint64_t left_to_waiters_ = 0;  // added_ when it last left the work to waiting threads
  // Whether the program leaves operations to the progress thread: it has not waited for the last
  // one, or only later than right after its start.
  std::atomic<bool> unattended_{true};
  // Times of the first and the last add() since a waiter came or the thread looked; 0: none.
  std::atomic<std::uint64_t> added_ns_{0}, last_added_ns_{0};
  std::size_t longest_ = 0;     // bytes of the longest operation added since then
  std::uint64_t grace_ns_ = 0;  // for so long after added_ns_ the program may still wait
  std::uint64_t added_ = 0;     // operations added so far
  // The thread sleeps on words: peers make a system call to wake it.
  std::atomic<bool> at_bells_{false};
  std::atomic<std::uint32_t> wake_{0};
  std::uint64_t nap_ns_ = 0;  // length of the last nap
  std::uint64_t stops_ = 0;   // Look::stops of the last look
  int idle_ = 0;              // naps since an operation was last added
};

}  // namespace gradred
