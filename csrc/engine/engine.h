// All operations in flight in this process, and the thread that drives them while nobody waits.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/operation.h"

namespace gradred {

class Engine {
 public:
  Engine() = default;
  ~Engine() { stop(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The engine keeps the operation until it has ended. With `threaded` the progress thread looks
  // after it; else only progress() does. Throws TransportError where no thread can be had; the
  // operation is not kept then.
  void add(std::shared_ptr<Operation> operation, bool threaded);
  // Advances everything in flight a little; never blocks.
  void progress();
  // While a waiter exists the progress thread leaves the work to it.
  class Waiting {
   public:
    explicit Waiting(Engine& engine) : engine_(engine) { ++engine_.waiting_; }
    ~Waiting() { --engine_.waiting_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Engine& engine_;
  };
  // Carries on what a program that ends must not leave undone, for at most this long.
  void settle(std::chrono::nanoseconds limit) noexcept;
  // Ends the progress thread and gives up what is in flight; the engine may be used again.
  void stop(std::string_view why = "a rank has left the program") noexcept;
  std::size_t in_flight();

 private:
  void run();
  void progress_unattended();
  void start_thread();
  std::vector<std::shared_ptr<Operation>> snapshot();
  void drop_ended();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Operation>> operations_;
  std::thread thread_;
  std::atomic<int> waiting_{0};
  bool stopping_ = false;
  bool asleep_ = false;  // the thread waits for add(), without a limit
};

}  // namespace gradred
