// The shared memory of one host when ranks are killed, leave or interrupt a wait, and the groups
// that the remaining ranks make.

#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <random>
#include <thread>

#include "in_time.h"
#include "node/group/shrinking.h"
#include "node/memory/cores.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

// Repeats an operation until it throws. Returns the error's text and the time until it came.
template <class Expected>
std::string error_of_endless_calls(NodeGroup& group, const Call& call, double& seconds,
                                   Poll* poll = nullptr) {
  Bytes send(call.count * size_of(call.dtype)), recv(send.size());
  auto last = std::chrono::steady_clock::now();
  try {
    while (true) {
      perform(group, call, send.data(), recv.data(), poll);
      last = std::chrono::steady_clock::now();
    }
  } catch (const Expected& error) {
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - last).count();
    return error.what();
  }
}

void a_killed_peer_is_lost_within_two_seconds(BoardBootstrap& bootstrap, std::size_t count,
                                              InSteps steps) {
  const auto group = make_group(bootstrap, small_paths());
  if (group->rank() == 1) {
    const pid_t me = getpid();
    std::thread([me] {
      usleep(30'000);
      kill(me, SIGKILL);
    }).detach();
  }
  double seconds = 0;
  const std::string message =
      error_of_endless_calls<PeerLost>(*group, {.count = count, .steps = steps}, seconds);
  expect(contains(message, "rank 1"), "the lost rank is not named: " + message);
  expect(in_time(seconds, 2), "it took " + std::to_string(seconds) + " s");
  double again = 0;
  error_of_endless_calls<PeerLost>(*group, {.count = 1}, again);  // the error is permanent
}

void a_freed_group_is_reported_to_waiting_peers(BoardBootstrap& bootstrap) {
  auto group = make_group(bootstrap, small_paths());
  run_call(*group, {.count = 4}, 1);
  if (group->rank() == 0) {
    group.reset();
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1500));  // the process must not end before the peers see this
    return;
  }
  double seconds = 0;
  const std::string message = error_of_endless_calls<PeerLost>(*group, {.count = 4}, seconds);
  expect(contains(message, "rank 0") && contains(message, "freed"), message);
}

struct Interrupted {};  // like a signal's exception, not a std::exception

class ThrowingPoll final : public Poll {
 public:
  explicit ThrowingPoll(std::function<void()> action) : action_(std::move(action)) {}
  void poll() override {
    if (++calls_ == 20) action_();
  }
  int calls() const { return calls_; }

 private:
  std::function<void()> action_;
  int calls_ = 0;
};

void what_poll_throws_reaches_all_ranks(BoardBootstrap& bootstrap) {
  const auto start = std::chrono::steady_clock::now();
  {
    const auto group = make_group(bootstrap, small_paths());
    double seconds = 0;
    if (group->rank() == 0) {  // the others wait for rank 1, which comes later
      ThrowingPoll late([] { throw TimeoutError("waited for too long"); });
      const auto message =
          error_of_endless_calls<TimeoutError>(*group, {.count = 4}, seconds, &late);
      expect(contains(message, "waited for too long"), message);
    } else {
      if (group->rank() == 1) usleep(400'000);
      const auto message = error_of_endless_calls<TimeoutError>(*group, {.count = 4}, seconds);
      expect(contains(message, "rank 0") && contains(message, "waited for too long"), message);
    }
    bootstrap.barrier();
  }
  const auto group = make_group(bootstrap, small_paths());
  if (group->rank() == 0) {
    ThrowingPoll interrupt([] { throw Interrupted(); });
    try {
      double seconds = 0;
      error_of_endless_calls<Error>(*group, {.count = 4}, seconds, &interrupt);
    } catch (const Interrupted&) {
    }
  } else {
    if (group->rank() == 1) usleep(400'000);
    double seconds = 0;
    error_of_endless_calls<TransportError>(*group, {.count = 4}, seconds);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  expect(in_time(took.count(), 5), "leaving took " + std::to_string(took.count()) + " s");
}

// During a long wait, Poll::poll() must be called often enough to handle Ctrl-C within 0.1 s.
void poll_is_called_throughout_a_wait(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  ThrowingPoll counting([] {});
  Bytes data(16);
  if (group->rank() == 1) usleep(600'000);
  perform(*group, {.count = 4}, kInPlace, data.data(), &counting);
  if (group->rank() == 0) {
    expect(counting.calls() >= 15,
           "poll was called " + std::to_string(counting.calls()) + " times");
  }
}

// Simulates a container: the file that this rank finds under the leader's process number is not the
// leader's memory.
class ElsewhereBootstrap final : public Bootstrap {
 public:
  explicit ElsewhereBootstrap(BoardBootstrap& bootstrap) : bootstrap_(bootstrap) {}
  int rank() const override { return bootstrap_.rank(); }
  int size() const override { return bootstrap_.size(); }
  void barrier() override { bootstrap_.barrier(); }
  void allgather(const void* mine, std::size_t bytes, void* all) override {
    bootstrap_.allgather(mine, bytes, all);
    if (++calls_ == 1 && rank() == 2) *static_cast<std::uint64_t*>(all) ^= 1;  // changes the token
  }

 private:
  BoardBootstrap& bootstrap_;
  int calls_ = 0;
};

// If one rank cannot take part, no rank may take part, and all must know the reason.
void a_rank_that_sees_other_memory_is_named_on_every_rank(BoardBootstrap& bootstrap) {
  ElsewhereBootstrap elsewhere(bootstrap);
  std::string reason;
  expect(NodeGroup::create(elsewhere, small_paths(), reason) == nullptr, "a group was made");
  expect(contains(reason, "rank 2") && contains(reason, "containers"), "reason: " + reason);
  run_call(*make_group(bootstrap, small_paths()), {.count = 100}, 1);
}

std::size_t entries(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// ---- shrinking ----------------------------------------------------------------------------------

using Members = std::vector<std::size_t>;

// Adds 2^(rank in the first group) over the group. The sum shows which ranks are members.
void expect_members(NodeGroup& group, std::size_t first_rank, const Members& members) {
  std::uint64_t sum = std::uint64_t{1} << first_rank, expected = 0;
  for (const std::size_t member : members) expected |= std::uint64_t{1} << member;
  group.run(node_call({.dtype = DType::kUInt64, .count = 1}, kInPlace, &sum));
  expect(sum == expected, "the sum is that of all members and nobody else: " + std::to_string(sum));
}

// A rank that frees its group has left. This works for threads as well.
void those_that_are_left_make_a_group(BoardBootstrap& bootstrap) {
  auto group = make_group(bootstrap, small_paths());
  const auto rank = static_cast<std::size_t>(bootstrap.rank());
  const auto size = static_cast<std::size_t>(bootstrap.size());
  if (rank == 1) return group.reset();
  Members members{0};
  for (std::size_t i = 2; i < size; ++i) members.push_back(i);
  Shrinking shrinking(*group);
  const auto made = shrinking.run(nullptr);
  expect(shrinking.members() == members, "the list of those that are left");
  expect(made->size() == bootstrap.size() - 1, "the new size");
  expect(static_cast<std::size_t>(made->rank()) == (rank == 0 ? 0 : rank - 1), "the old order");
  for (int turn = 0; turn < 3; ++turn) expect_members(*made, rank, members);
  if (size < 4) return;
  Call call{.kind = Kind::kAllgather, .count = 5000};
  run_call(*made, call, 1);
}

// A group without failures can be shrunk repeatedly, and so can the resulting groups.
void sound_groups_shrink_to_all_ranks(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  const auto rank = static_cast<std::size_t>(bootstrap.rank());
  Members all;
  for (int i = 0; i < bootstrap.size(); ++i) all.push_back(static_cast<std::size_t>(i));
  std::unique_ptr<NodeGroup> last;
  for (int turn = 0; turn < 20; ++turn) {
    auto made = Shrinking(turn % 3 == 2 ? *last : *group).run(nullptr);
    expect_members(*made, rank, all);
    expect_members(*group, rank, all);
    last = std::move(made);
  }
}

// An exception from one rank's Poll ends the attempt on all ranks. The next attempt succeeds.
void a_rank_that_gives_up_shrinking_takes_all_along(BoardBootstrap& bootstrap) {
  class Impatient final : public Poll {
   public:
    void poll() override {
      usleep(100'000);  // a rank that arrives later takes part in the next attempt
      throw TimeoutError("patience is over");
    }
  };
  const auto group = make_group(bootstrap, small_paths());
  const auto rank = static_cast<std::size_t>(bootstrap.rank());
  Members all;
  for (int i = 0; i < bootstrap.size(); ++i) all.push_back(static_cast<std::size_t>(i));
  bootstrap.barrier();
  const auto last = static_cast<std::size_t>(bootstrap.size() - 1);
  if (rank != last) {
    Impatient impatient;
    try {
      Shrinking(*group).run(rank == 0 ? &impatient : nullptr);
      throw Failed("a rank did not come, and yet there is a group");
    } catch (const TimeoutError& error) {
      expect(std::string(error.what()) == "patience is over", "the same text on all ranks");
    }
  }
  bootstrap.barrier();
  for (int turn = 0; turn < 2; ++turn) {
    const auto made = Shrinking(*group).run(nullptr);
    expect_members(*made, rank, all);
  }
}

// If rank 1 gives up after rank 0 has got its group, rank 1 must get its group as well.
void once_a_rank_has_shrunk_all_have(BoardBootstrap& bootstrap) {
  static std::atomic<int> shrunk, gave_up;  // counts for rank 0 and rank 1
  class GivesUpLate final : public Poll {
   public:
    explicit GivesUpLate(int turn) : turn_(turn) {}
    void poll() override {
      for (int look = 0; look < 10 && shrunk <= turn_; ++look) usleep(30);
      if (shrunk <= turn_) return;
      ++gave_up;
      throw TimeoutError("patience is over");
    }

   private:
    const int turn_;
  };
  class Slow final : public Poll {
   public:
    void poll() override { usleep(draw_() % 2 == 0 ? 2000 : 1); }

   private:
    std::mt19937 draw_{5};
  };
  const auto group = make_group(bootstrap, small_paths());
  if (bootstrap.rank() == 0) shrunk = 0;
  bootstrap.barrier();
  Slow slow;
  int without = 0;
  bool never = true;  // a slow rank 1 may never give up in time
  for (int turn = 0; turn < 200 || (never && turn < 5000); ++turn) {
    GivesUpLate late(turn);
    Poll* const poll = bootstrap.rank() == 1 ? static_cast<Poll*>(&late) : &slow;
    std::unique_ptr<NodeGroup> made;
    try {
      made = Shrinking(*group).run(poll);
    } catch (const TimeoutError&) {
      ++without;
    }
    if (bootstrap.rank() == 0) shrunk = turn + 1;
    bootstrap.barrier();
    never = gave_up == 0;
    bootstrap.barrier();
  }
  expect(without == 0, "rank 0 has a group, and so has every other one");
  expect(gave_up > 0, "rank 1 never gave up");
}

// Rank 1 is killed while all ranks shrink the group. The remaining ranks must agree on the members,
// perhaps after another attempt or another shrink.
void kills_while_shrinking_leave_those_that_live(BoardBootstrap& bootstrap, unsigned seed) {
  const auto rank = static_cast<std::size_t>(bootstrap.rank());
  const auto group = make_group(bootstrap, small_paths());
  bootstrap.barrier();
  if (rank == 1) {
    std::thread([seed] {
      std::this_thread::sleep_for(std::chrono::microseconds(seed * 97 % 3000));
      kill(getpid(), SIGKILL);
    }).detach();
  }
  Members alive{0};
  for (int i = 2; i < bootstrap.size(); ++i) alive.push_back(static_cast<std::size_t>(i));
  const NodeGroup* from = group.get();
  std::unique_ptr<NodeGroup> made;
  Members names;  // ranks in the first group of the ranks of `from`
  for (int i = 0; i < bootstrap.size(); ++i) names.push_back(static_cast<std::size_t>(i));
  for (int attempt = 0; attempt < 100'000; ++attempt) {
    try {
      Shrinking shrinking(*from);
      auto next = shrinking.run(nullptr);
      Members kept;
      for (const std::size_t member : shrinking.members()) kept.push_back(names[member]);
      names = kept;
      made = std::move(next);
      from = made.get();
      if (names == alive) return expect_members(*made, rank, alive);
      for (;;) expect_members(*made, rank, names);
    } catch (const PeerLost&) {
    }
  }
  throw Failed("no group after many attempts");
}

void nothing_is_left_behind(BoardBootstrap& bootstrap) {
  bootstrap.barrier();
  const std::size_t files = entries("/proc/self/fd");
  for (int i = 0; i < 3; ++i) {
    const auto group = make_group(bootstrap, small_paths());
    run_call(*group, {.count = 1000}, 1);
    expect(entries("/proc/self/fd") <= files + 1, "a pool keeps one file open");
  }
  expect(entries("/proc/self/fd") == files, "a pool that has gone keeps no file open");
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    expect(!contains(entry.path().string(), "gradred"), "left behind: " + entry.path().string());
  }
}

std::string ranks_spin_only_with_a_core_each() {
  Cores all, first, second;
  all.allowed.set(0).set(1);
  first.allowed.set(0);
  second.allowed.set(1);
  Cores limited = all;
  limited.quota = 1;
  const auto spins = [](std::vector<Cores> group, std::size_t ranks) {
    return each_has_a_core(group, ranks);
  };
  const bool right = spins({all, all}, 2) && !spins({all, all, all}, 3) && !spins({all, all}, 4) &&
                     spins({first, second}, 2) && !spins({first, first}, 2) &&
                     !spins({limited, limited}, 2) && spins({limited}, 1);
  return right ? "" : "wrong answer\n";
}

std::string processes_are_distinguished() {
  const ProcessId me = this_process();
  ProcessId earlier = me;
  --earlier.start_time;  // same process number, another process
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ProcessId other{child, 0};
  const bool unknown_lives = is_alive(other);
  kill(child, SIGKILL);
  siginfo_t ended;
  waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
  other.start_time = me.start_time + 1;
  const bool zombie_lives = is_alive(other);
  waitpid(child, nullptr, 0);
  const bool right = is_alive(me) && !is_alive(earlier) && unknown_lives && !zombie_lives;
  return right ? "" : "wrong answer\n";
}

std::string processes_are_distinguished_without_descriptors() {
  const ProcessId me = this_process();
  const pid_t ended = fork();
  if (ended == 0) _exit(0);
  siginfo_t seen;
  waitid(P_PID, static_cast<id_t>(ended), &seen, WEXITED | WNOWAIT);  // it stays a zombie
  const pid_t looker = fork();
  if (looker == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    const bool right = is_alive(me) && !is_alive({ended, me.start_time}) &&
                       state_text({ended, me.start_time}) == "ended" &&
                       state_text(me) == "state unknown";
    _exit(right ? 0 : 1);
  }
  int status = 1;
  waitpid(looker, &status, 0);
  waitpid(ended, nullptr, 0);
  return status == 0 ? "" : "wrong answer\n";
}

int run_all(const std::string& part) {
  Report report(part);
  for (const Ranks kind : {Ranks::kProcesses, Ranks::kThreads}) {
    const auto on = on_ranks(report, kind);
    for (const int size : {2, 3, 5}) {
      on(size, "a_freed_group_is_reported_to_waiting_peers",
         a_freed_group_is_reported_to_waiting_peers);
      on(size, "those_that_are_left_make_a_group", those_that_are_left_make_a_group);
    }
    for (const int size : {2, 4}) {
      on(size, "what_poll_throws_reaches_all_ranks", what_poll_throws_reaches_all_ranks);
      on(size, "poll_is_called_throughout_a_wait", poll_is_called_throughout_a_wait);
      on(size, "sound_groups_shrink_to_all_ranks", sound_groups_shrink_to_all_ranks);
      on(size, "a_rank_that_gives_up_shrinking_takes_all_along",
         a_rank_that_gives_up_shrinking_takes_all_along);
    }
  }
  on_ranks(report, Ranks::kThreads)(2, "once_a_rank_has_shrunk_all_have",
                                    once_a_rank_has_shrunk_all_have);
  const auto on_processes = on_ranks(report, Ranks::kProcesses);
  for (const std::size_t count : {2U, 1000U, 300'000U}) {
    for (const int size : {2, 3, 8}) {
      on_processes(size, "a_killed_peer_is_lost_within_two_seconds, count " + std::to_string(count),
                   [&](BoardBootstrap& bootstrap) {
                     a_killed_peer_is_lost_within_two_seconds(bootstrap, count, InSteps::kNone);
                   });
    }
  }
  for (const InSteps steps : {InSteps::kBusy, InSteps::kAsleep, InSteps::kBegun}) {
    on_processes(3,
                 "a_killed_peer_is_lost_within_two_seconds, in steps " +
                     std::to_string(static_cast<int>(steps)),
                 [&](BoardBootstrap& bootstrap) {
                   a_killed_peer_is_lost_within_two_seconds(bootstrap, 300'000, steps);
                 });
  }
  for (const unsigned seed : {1U, 5U, 12U, 23U, 31U, 40U}) {
    on_processes(4, "kills_while_shrinking_leave_those_that_live, seed " + std::to_string(seed),
                 [&](BoardBootstrap& bootstrap) {
                   kills_while_shrinking_leave_those_that_live(bootstrap, seed);
                 });
  }
  on_processes(4, "a_rank_that_sees_other_memory_is_named_on_every_rank",
               a_rank_that_sees_other_memory_is_named_on_every_rank);
  on_processes(3, "nothing_is_left_behind", nothing_is_left_behind);
  report("ranks_spin_only_with_a_core_each", ranks_spin_only_with_a_core_each);
  report("processes_are_distinguished", processes_are_distinguished);
  report("processes_are_distinguished_without_descriptors",
         processes_are_distinguished_without_descriptors);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: node_faults_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
