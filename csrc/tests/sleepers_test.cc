// Tests each kind of sleeping thread with a writer that comes during the sleep. No thread may sleep
// until its limit if the awaited event has happened. docs/design/engine.md has a table of these
// threads.
//
//   sleepers_test [tries of each]
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "boards.h"
#include "engine/callbacks.h"
#include "engine/engine.h"
#include "in_time.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

constexpr unsigned kUntilItSleeps = 5'000;             // microseconds
constexpr unsigned kUntilItSleepsAfterYields = 8'000;  // Waiter yields for 5 ms before
int tries = 40;

void expect_no_wake_up_lost() {
  const Sleep::Counts counts = Sleep::counts();
  expect(counts.lost == 0, std::to_string(counts.lost) + " of " + std::to_string(counts.sleeps) +
                               " sleeps were not woken");
}

// On a busy machine the peer often comes before this rank sleeps.
void expect_that_it_has_slept() {
  const auto sleeps = Sleep::counts().sleeps;
  const int least = times_are_strict() ? tries / 2 : 1;
  expect(sleeps >= static_cast<std::uint64_t>(least), "only " + std::to_string(sleeps) + " sleeps");
}

NodeOptions options_of(bool shares_cores) {
  NodeOptions options = small_paths();
  if (shares_cores) options.ranks_on_host = 1'000;
  return options;
}

// The two ranks take turns to come late.
void in_a_call(BoardBootstrap& bootstrap, bool shares_cores) {
  const auto group = make_group(bootstrap, options_of(shares_cores));
  for (int turn = 0; turn < 2 * tries; ++turn) {
    float sum = 1;
    if (turn % 2 == group->rank()) usleep(kUntilItSleepsAfterYields);
    group->run(node_call({.count = 1}, kInPlace, &sum));
    expect(sum == 2, "a wrong sum");
  }
  expect_that_it_has_slept();
  expect_no_wake_up_lost();
}

// An allreduce of a group, which the progress thread advances.
class Allreduce final : public Operation {
 public:
  explicit Allreduce(NodeGroup& group) : execution_(group) {
    execution_.start(node_call({.count = 1}, kInPlace, &sum_));
  }
  float sum() const { return sum_; }
  std::string waiter() const override { return "this test"; }
  std::string waits_for() const override { return "a peer"; }

 protected:
  bool step() override {
    if (execution_.advance()) return true;
    stop_at({Progress::State::kAwaits, execution_.awaited()});
    return false;
  }
  void withdraw() noexcept override {}

 private:
  float sum_ = 1;
  NodeExecution execution_;
};

void see_the_end_of(const Operation& operation) {
  while (!operation.ended()) usleep(200);
  operation.rethrow();
}

// One thread sleeps for all groups, and a peer comes to the groups one after the other.
void in_the_engine(BoardBootstrap& bootstrap, int groups) {
  std::vector<std::unique_ptr<NodeGroup>> all;
  for (int i = 0; i < groups; ++i) all.push_back(make_group(bootstrap, options_of(false)));
  Engine engine;
  for (int turn = 0; turn < tries; ++turn) {
    if (bootstrap.rank() == 1) {
      for (const auto& group : all) {
        float sum = 1;
        usleep(kUntilItSleeps);
        group->run(node_call({.count = 1}, kInPlace, &sum));
      }
      continue;
    }
    std::vector<std::shared_ptr<Allreduce>> operations;
    for (const auto& group : all) {
      operations.push_back(std::make_shared<Allreduce>(*group));
      engine.add(operations.back(), Engine::Driven::kByThread);
    }
    for (const auto& operation : operations) {
      see_the_end_of(*operation);
      expect(operation->sum() == 2, "a wrong sum");
    }
  }
  if (bootstrap.rank() == 0) expect_that_it_has_slept();
  expect_no_wake_up_lost();
}

class Ready final : public Operation {
 public:
  std::string waiter() const override { return "this test"; }
  std::string waits_for() const override { return "nothing"; }

 protected:
  bool step() override { return true; }
  void withdraw() noexcept override {}
};

// An operation is added while the progress thread sleeps for a peer. The peer comes only after that
// operation has ended.
void beside_another(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, options_of(false));
  Engine engine;
  for (int turn = 0; turn < tries; ++turn) {
    if (bootstrap.rank() == 1) {
      bootstrap.barrier();
      float sum = 1;
      group->run(node_call({.count = 1}, kInPlace, &sum));
      continue;
    }
    const auto late = std::make_shared<Allreduce>(*group);
    engine.add(late, Engine::Driven::kByThread);
    usleep(kUntilItSleeps);
    const auto ready = std::make_shared<Ready>();
    engine.add(ready, Engine::Driven::kByThread);
    see_the_end_of(*ready);
    bootstrap.barrier();
    see_the_end_of(*late);
  }
  if (bootstrap.rank() == 0) {
    expect_that_it_has_slept();
    const auto limits = static_cast<int>(Sleep::counts().ended_by_limit);
    expect(limits <= tries / 4, std::to_string(limits) + " times it was the limit");
  }
  expect_no_wake_up_lost();
}

// Ranks sleep until another rank submits a name.
void at_the_board(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  for (int turn = 0; turn < tries; ++turn) {
    if (bootstrap.rank() == 1) usleep(kUntilItSleeps);
    board.arrive("name", sum_of(1));
    for (std::size_t taken = 0; taken == 0;) {
      taken = board.take(true, true).size();
      if (taken == 0 && !board.any()) Sleep::until(board.news(), 1'000'000'000);
    }
  }
  if (bootstrap.rank() == 0) expect_that_it_has_slept();
  expect_no_wake_up_lost();
}

// The threads that call callbacks sleep until an operation posts some.
void for_callbacks(BoardBootstrap& bootstrap) {
  if (bootstrap.rank() == 1) return;
  DoneCallbacks& callbacks = done_callbacks();
  callbacks.use_threads();
  const Ready ended;
  for (int turn = 0; turn < tries; ++turn) {
    std::atomic<bool> called{false};
    usleep(kUntilItSleeps);
    std::vector<DoneCallback> mine;
    mine.emplace_back([&called] { called = true; });
    callbacks.post(&ended, std::move(mine));
    while (!called) usleep(100);
  }
}

// Stores the counter during a sleep of a millisecond. Rings 4 ms later, or never.
void sleep_for_a_writer(std::uint64_t turn, bool rings) {
  Bell bell;
  std::atomic<std::uint64_t> word{0};
  std::thread writer([&] {
    usleep(500);
    word.store(turn, std::memory_order_release);
    usleep(4'000);
    if (rings) ring_for_sleepers(bell, nullptr);
  });
  Sleep::until({&word, turn, &bell}, 1'000'000);
  writer.join();
}

// A sleeper whose limit is over waits for the ring before it calls the wake-up lost.
void before_a_late_ring(BoardBootstrap& bootstrap) {
  if (bootstrap.rank() == 1) return;
  for (int turn = 1; turn <= tries; ++turn) {
    sleep_for_a_writer(static_cast<std::uint64_t>(turn), true);
  }
  expect_that_it_has_slept();
  expect_no_wake_up_lost();
}

// It waits in vain for 100 ms, then for 50 ms, and so on.
void without_a_ring(BoardBootstrap& bootstrap) {
  if (bootstrap.rank() == 1) return;
  const std::uint64_t begin = now_ns();
  for (int turn = 1; turn <= tries; ++turn) {
    sleep_for_a_writer(static_cast<std::uint64_t>(turn), false);
  }
  const std::uint64_t took_ms = (now_ns() - begin) / 1'000'000;
  const Sleep::Counts counts = Sleep::counts();
  expect(counts.lost > 0, "no wake-up counts as lost");
  const auto most = 250 + 8 * static_cast<std::uint64_t>(tries);
  expect(!times_are_strict() || took_ms < most, "it took " + std::to_string(took_ms) + " ms");
}

int run_all() {
  const Shared memory(named::Board::bytes(2));
  const struct {
    const char* name;
    Body body;
  } kRows[] = {
      {"in a call, a core for each rank", [](auto& all) { in_a_call(all, false); }},
      {"in a call, ranks share cores", [](auto& all) { in_a_call(all, true); }},
      {"the engine's thread, a group", [](auto& all) { in_the_engine(all, 1); }},
      {"the engine's thread, three groups", [](auto& all) { in_the_engine(all, 3); }},
      {"what is added beside another", beside_another},
      {"names", [&](auto& all) { at_the_board(memory, all); }},
      {"callbacks", for_callbacks},
      {"a ring that comes late", before_a_late_ring},
      {"a ring that never comes", without_a_ring},
  };
  std::vector<pid_t> running;  // one per row, with its own ranks, which mostly sleep
  std::fflush(stdout);
  for (const auto& row : kRows) {
    const pid_t child = fork();  // this process has one thread
    if (child == 0) {
      const unsigned limit = 60 + static_cast<unsigned>(tries) / 10;
      const std::string failures = run_ranks(Ranks::kProcesses, 2, row.body, limit);
      if (!failures.empty()) std::printf("FAILED %s: %s", row.name, failures.c_str());
      std::fflush(stdout);
      _exit(failures.empty() ? 0 : 1);
    }
    running.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : running) {
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) ++failed;
  }
  std::printf("%d tries of each, %d failed\n", tries, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gradred::testing

int main(int argc, char** argv) {
  if (argc > 1) gradred::testing::tries = std::atoi(argv[1]);
  return gradred::testing::run_all();
}
