// The progress thread of the engine: when it sleeps, and when it is woken.
#include "engine/engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "in_time.h"

namespace gradred {
namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Ends in the first step after make_ready(), so that a thread has to step it repeatedly.
class Polled final : public Operation {
 public:
  void make_ready() { ready_ = true; }
  std::string waiter() const override { return "this test"; }
  std::string waits_for() const override { return "itself"; }

 protected:
  bool step() override { return ready_; }
  void withdraw() noexcept override {}

 private:
  std::atomic<bool> ready_{false};
};

// Number of times that all threads of this process but the first have gone to sleep.
long sleeps_of_other_threads() {
  long found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(getpid())) continue;
    std::ifstream status(task.path() / "status");
    for (std::string name; status >> name;) {
      long count = 0;
      if (name == "voluntary_ctxt_switches:" && status >> count) found += count;
    }
  }
  return found;
}

void thread_sleeps_while_somebody_waits() {
  Engine engine;
  const auto operation = std::make_shared<Polled>();
  engine.add(operation, Engine::Driven::kByThread);
  const Engine::Waiting waiting(engine);
  usleep(50'000);  // short naps may come first, longer on a busy machine
  const long before = sleeps_of_other_threads();
  usleep(300'000);
  const long naps = sleeps_of_other_threads() - before;
  expect(naps <= 5, "it has woken up " + std::to_string(naps) + " times");
  operation->make_ready();
  engine.progress();
}

// Else it takes the core from a program that computes between its operations.
void thread_naps_little_after_an_operation() {
  Engine engine;
  const auto operation = std::make_shared<Polled>();
  operation->make_ready();
  engine.add(operation, Engine::Driven::kByThread);
  while (!operation->ended()) usleep(100);
  const long before = sleeps_of_other_threads();
  usleep(100'000);
  const long naps = sleeps_of_other_threads() - before;
  expect(naps <= 3, "it has woken up " + std::to_string(naps) + " times");
}

// For a program that usually waits immediately, so that the progress thread starts polling late.
std::uint64_t left_for_ns(Engine& engine) {
  const auto operation = std::make_shared<Polled>();
  engine.add(operation, Engine::Driven::kByThread);
  std::uint64_t begin = 0;
  {
    const Engine::Waiting waiting(engine);
    usleep(5'000);
    operation->make_ready();
    begin = now_ns();
  }
  while (!operation->ended()) sched_yield();
  return now_ns() - begin;
}

void thread_drives_at_once_what_is_in_flight_after_a_wait() {
  Engine engine;
  std::vector<std::uint64_t> times;
  for (int turn = 0; turn < 41; ++turn) times.push_back(left_for_ns(engine));
  std::ranges::nth_element(times, times.begin() + 20);
  expect(testing::in_time(1e-9 * static_cast<double>(times[20]), 0.001),
         "it has left it for " + std::to_string(times[20]) + " ns");
}

// The progress thread sleeps without a limit, and no thread waits when the next operation is added.
void thread_is_woken_for_what_is_added_after_a_long_wait() {
  Engine engine;
  {
    const auto first = std::make_shared<Polled>();
    engine.add(first, Engine::Driven::kByThread);
    const Engine::Waiting waiting(engine);
    usleep(100'000);
    first->make_ready();
    engine.progress();
  }
  const auto second = std::make_shared<Polled>();
  second->make_ready();
  engine.add(second, Engine::Driven::kByThread);
  const std::uint64_t end = now_ns() + 10'000'000'000;
  while (!second->ended() && now_ns() < end) usleep(100);
  expect(second->ended(), "nobody has driven it");
}

// How long the progress thread leaves an operation to a program that gives it more to do.
std::uint64_t left_to_program_for_ns() {
  Engine engine;
  const auto operation = std::make_shared<Polled>();
  operation->make_ready();
  const std::uint64_t begin = now_ns();
  engine.add(operation, Engine::Driven::kByThread);
  engine.count_more(4);
  while (!operation->ended()) usleep(50);
  return now_ns() - begin;
}

// A program that submits many short named operations, and then waits for them, needs its core.
void thread_waits_while_an_operation_is_given_more() {
  std::vector<std::uint64_t> times;
  for (int turn = 0; turn < 41; ++turn) times.push_back(left_to_program_for_ns());
  std::ranges::nth_element(times, times.begin() + 20);
  expect(times[20] > 400'000, "it has left it for " + std::to_string(times[20]) + " ns");
}

// One thread waits repeatedly, another leaves operations to the progress thread.
void no_operation_is_forgotten_between_threads() {
  Engine engine;
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    while (!over) {
      const Engine::Waiting waiting(engine);
    }
  });
  for (int turn = 0; turn < 2'000; ++turn) {
    const auto operation = std::make_shared<Polled>();
    operation->make_ready();
    engine.add(operation, Engine::Driven::kByThread);
    const std::uint64_t end = now_ns() + 10'000'000'000;
    while (!operation->ended() && now_ns() < end) sched_yield();
    if (!operation->ended()) {
      over = true;
      waiter.join();
      expect(false, "operation " + std::to_string(turn) + " was forgotten");
    }
  }
  over = true;
  waiter.join();
}

// One thread ends operations, another observes the ends. The observer must call the callback at
// once, even if the first thread has not posted it yet.
void who_finds_the_end_calls_the_callbacks() {
  constexpr int kTurns = 3'000;
  std::vector<std::shared_ptr<Polled>> operations(kTurns);
  for (auto& operation : operations) operation = std::make_shared<Polled>();
  std::atomic<int> turn{-1};
  std::thread ender([&] {
    for (int index = 0; index < kTurns; ++index) {
      while (turn.load() < index) sched_yield();
      operations[index]->make_ready();
      operations[index]->advance();
    }
  });
  int forgotten = 0;
  for (int index = 0; index < kTurns; ++index) {
    std::atomic<bool> called{false};
    operations[index]->when_ended([&called] { called = true; });
    turn = index;
    for (int looks = 1; !operations[index]->ended(); ++looks) {
      if (looks % 1000 == 0) sched_yield();  // the other thread may need this core
    }
    operations[index]->call_callbacks();
    if (!called) ++forgotten;
    done_callbacks().finish(std::chrono::seconds(1));
  }
  ender.join();
  expect(forgotten == 0, std::to_string(forgotten) + " callbacks were not called");
}

int run_all() {
  int failed = 0;
  const auto run = [&](const char* name, const std::function<void()>& test) {
    try {
      test();
    } catch (const std::exception& error) {
      std::printf("FAILED %s: %s\n", name, error.what());
      ++failed;
    }
  };
  run("thread_sleeps_while_somebody_waits", thread_sleeps_while_somebody_waits);
  run("thread_naps_little_after_an_operation", thread_naps_little_after_an_operation);
  run("thread_drives_at_once_what_is_in_flight_after_a_wait",
      thread_drives_at_once_what_is_in_flight_after_a_wait);
  run("thread_is_woken_for_what_is_added_after_a_long_wait",
      thread_is_woken_for_what_is_added_after_a_long_wait);
  run("thread_waits_while_an_operation_is_given_more",
      thread_waits_while_an_operation_is_given_more);
  run("no_operation_is_forgotten_between_threads", no_operation_is_forgotten_between_threads);
  run("who_finds_the_end_calls_the_callbacks", who_finds_the_end_calls_the_callbacks);
  std::printf("%d failed\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gradred

int main() { return gradred::run_all(); }
