// All operations in flight in this process, and the thread that drives them while nobody waits.
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
  // Who drives an operation while nobody waits for it: the engine's thread, or nobody, so that it
  // gets on in progress() alone.
  enum class Driven : std::uint8_t { kByThread, kByCalls };

  Engine() = default;
  ~Engine() { stop(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The engine keeps the operation until it has ended. Throws TransportError where no thread can be
  // had; the operation is not kept then.
  void add(std::shared_ptr<Operation> operation, Driven driven);
  // Advances everything in flight a little; never blocks.
  void progress();
  // The same from inside a call of the MPI, of what may be. Returns how many have ended.
  int progress_in_mpi();
  // Whether the calling thread is the engine's.
  static bool in_its_thread();
  // Whether nothing is in flight, for callers that come often.
  bool quiet() const { return kept_.load(std::memory_order_relaxed) == 0; }

  // While a waiter exists the thread leaves the work to it, but for what a program's streams wait
  // for.
  class Waiting {
   public:
    explicit Waiting(Engine& engine) : engine_(engine) { engine_.take_over(); }
    ~Waiting() { engine_.hand_back(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Engine& engine_;
  };
  // Carries on what a program that ends must not leave undone, for at most this long.
  void settle(std::chrono::nanoseconds limit) noexcept;
  // Ends the thread and gives up what is in flight; the engine may be used again.
  void stop(std::string_view why = "a rank has left the program") noexcept;
  std::size_t in_flight();

 private:
  struct Kept {
    std::shared_ptr<Operation> operation;
    Driven driven;
  };
  // What the thread has to wait for after a look at all operations.
  struct Look {
    bool any = false;         // it drives one that has not ended
    bool polls = false;       // and has to look at one again, soon
    std::uint64_t added = 0;  // operations, when it began
    std::vector<Awaited> words;
    std::vector<std::shared_ptr<Operation>> owners;  // of the memory that the words stand in
    std::uint64_t looked_at = 0;                     // operations
    std::uint64_t stops = 0;    // of those that have not ended: another number, and one got on
    std::uint64_t took_ns = 0;  // of the processor
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
  bool sleeps_ = false;                // until wake_ changes, or a limit
  bool asleep_ = false;                // without a limit
  bool idles_ = false;                 // since nothing is in flight, or somebody waits for it
  bool handed_back_ = false;           // who has waited has woken it
  std::uint64_t left_to_waiters_ = 0;  // added_ when it last slept because somebody waits
  // Whether the program leaves operations to the thread: it has waited for the last one later than
  // right after it had started it, or not at all.
  std::atomic<bool> unattended_{true};
  std::atomic<std::uint64_t> added_ns_{0};  // the first since a waiter came, or the thread; or 0
  std::uint64_t added_ = 0;                 // operations so far
  std::atomic<bool> at_bells_{false};       // peers make a system call to wake it
  std::atomic<std::uint32_t> wake_{0};
  std::uint64_t nap_ns_ = 0;  // the last one
  std::uint64_t stops_ = 0;   // Look::stops of the last one
  int idle_ = 0;              // naps since an operation was added
};

}  // namespace gradred
