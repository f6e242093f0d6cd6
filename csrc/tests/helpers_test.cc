// Threads that help ranks with their long calls: each slice is worked on once, results have the
// same bits, and helpers sleep, leave signals alone, and survive forks, exceptions and lost peers.

#include "node/paths/helpers.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <set>
#include <thread>

#include "in_time.h"
#include "node/memory/cores.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

std::string passed_if(bool right, const std::string& what) { return right ? "" : what + "\n"; }

// Looks at a condition for up to ten seconds.
bool becomes_true(const std::function<bool()>& is_true) {
  for (int look = 0; look < 10'000; ++look) {
    if (is_true()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return is_true();
}

// A slice that a helper works on: the caller waits in its own one until a helper has begun.
void share_with_a_helper(const std::function<void()>& in_helper) {
  std::atomic<bool> begun{false};
  const auto caller = std::this_thread::get_id();
  const auto work = [&](std::size_t index) {
    if (std::this_thread::get_id() == caller) {
      becomes_true([&] { return begun.load() || index > 0; });
    } else {
      begun = true;
      in_helper();
    }
  };
  Helpers::share(2, work);
  if (!begun) throw Failed("no helper has begun within ten seconds");
}

std::string slices_have_each_element_once() {
  for (const std::size_t count : {0U, 1U, 63U, 64U, 65U, 1000U, 4099U}) {
    for (const std::size_t slices : {1U, 2U, 3U, 7U}) {
      std::size_t end = 0;
      for (std::size_t index = 0; index < slices; ++index) {
        const auto [begin, length] = slice_of(count, slices, index);
        if (begin != end) return "a gap before slice " + std::to_string(index) + "\n";
        end = begin + length;
      }
      if (end != count) return "slices of " + std::to_string(count) + " end before it\n";
    }
  }
  return "";
}

std::string each_slice_is_worked_on_once_also_by_many_callers() {
  std::atomic<unsigned> wrong{0};
  const auto call_often = [&] {
    for (unsigned turn = 0; turn < 300; ++turn) {
      std::array<std::atomic<unsigned>, 4> times{};
      Helpers::share(4, [&](std::size_t index) { ++times.at(index); });
      for (const auto& one : times) wrong += one == 1 ? 0 : 1;
    }
  };
  std::thread other(call_often);
  call_often();
  other.join();
  return passed_if(wrong == 0, std::to_string(wrong) + " slices not worked on once");
}

std::string exceptions_of_slices_reach_the_caller() {
  for (const bool in_helper : {false, true}) {
    try {
      if (in_helper) {
        share_with_a_helper([] { throw UsageError("thrown in a slice"); });
      } else {
        Helpers::share(2, [](std::size_t index) {
          if (index == 0) throw UsageError("thrown in a slice");
        });
      }
      return "nothing was thrown\n";
    } catch (const UsageError& error) {
      if (!contains(error.what(), "thrown in a slice")) return "another error\n";
    }
  }
  std::atomic<unsigned> calls{0};
  Helpers::share(2, [&](std::size_t) { ++calls; });
  return passed_if(calls == 2, "helpers no longer work after an exception");
}

std::string helpers_block_all_signals() {
  sigset_t blocked;
  share_with_a_helper([&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); });
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  return passed_if(sigismember(&blocked, SIGINT) == 1 && sigismember(&blocked, SIGTERM) == 1 &&
                       sigismember(&own, SIGINT) == 0,
                   "a helper takes signals, or the caller does not any more");
}

std::string helpers_sleep_when_no_call_is_active() {
  Helpers::share(3, [](std::size_t) {});
  Helpers::rest();
  if (!becomes_true([] { return Helpers::asleep() >= 2; })) return "awake after a call's end\n";
  share_with_a_helper([] {});
  return passed_if(becomes_true([] { return Helpers::asleep() >= 2; }), "awake without a call");
}

std::string a_forked_child_has_helpers_of_its_own() {
  share_with_a_helper([] {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    try {
      share_with_a_helper([] {});
      Helpers::stop();
      _exit(0);
    } catch (const std::exception&) {
      _exit(1);
    }
  }
  int status = 1;
  waitpid(child, &status, 0);
  share_with_a_helper([] {});
  return passed_if(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child got no helper");
}

// In a child, whose helpers start anew.
std::string helpers_run_on_the_cores_of_their_rank_wherever_the_caller_is_bound() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const auto all = allowed_cores();
    std::bitset<kMaxCores> one;
    for (std::size_t core = 0; one.none(); ++core) one[core] = all[core];
    Helpers::may_run_on(all);
    run_on(one);
    std::bitset<kMaxCores> helpers;
    share_with_a_helper([&] { helpers = allowed_cores(); });
    _exit(helpers == all && allowed_cores() == one ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return passed_if(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a helper runs elsewhere");
}

// In a child, since no helper starts again.
std::string after_their_end_callers_work_alone() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    share_with_a_helper([] {});
    Helpers::stop();
    std::set<std::thread::id> threads;
    Helpers::share(3, [&](std::size_t) { threads.insert(std::this_thread::get_id()); });
    Helpers::rest();
    Helpers::stop();
    _exit(threads.size() == 1 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return passed_if(WIFEXITED(status) && WEXITSTATUS(status) == 0, "it failed or hangs");
}

std::string each_thread_of_a_rank_needs_a_core() {
  Cores all, first;
  for (std::size_t core = 0; core < 4; ++core) all.allowed.set(core);
  first.allowed.set(0).set(1);
  Cores second = all;
  second.allowed &= ~first.allowed;
  Cores limited = all;
  limited.quota = 3;
  const auto helps = [](std::vector<Cores> group, std::size_t threads) {
    return each_has_a_core(group, group.size(), threads);
  };
  const bool right = helps({all, all}, 2) && !helps({all, all}, 3) && helps({first, second}, 2) &&
                     !helps({first, all}, 2) && !helps({first}, 3) && !helps({limited}, 4) &&
                     helps({limited}, 3);
  return passed_if(right, "wrong answer");
}

void a_rank_without_enough_cores_has_no_helpers(BoardBootstrap& bootstrap) {
  NodeOptions options;
  options.threads = kMaxCores + 1;
  expect(make_group(bootstrap, options)->threads() == 1, "more threads than a host has cores");
}

NodeOptions helped_paths() {
  NodeOptions options = small_paths();
  options.helped_bytes = 1;
  return options;
}

std::unique_ptr<NodeGroup> make_helped(BoardBootstrap& bootstrap, std::size_t threads) {
  auto group = make_group(bootstrap, helped_paths());
  group->use_threads(threads);
  return group;
}

// Through chunks and by reading peers, in place or not, with counts that no slice divides.
void results_have_the_bits_of_one_thread(BoardBootstrap& bootstrap, std::size_t threads) {
  const auto group = make_helped(bootstrap, threads);
  unsigned seed = 0;
  for (std::size_t type = 0; type < kDTypes; ++type) {
    for (std::size_t op = 0; op < kOps; ++op) {
      Call call{.op = static_cast<Op>(op), .dtype = static_cast<DType>(type)};
      if (find_reduction(call.op, call.dtype) == nullptr) continue;
      for (const std::size_t count : {5003U, 30'011U}) {
        call.count = count;
        call.in_place = !call.in_place;
        run_call(*group, call, ++seed);
      }
    }
  }
  for (const Kind kind : {Kind::kAllreduce, Kind::kReduceScatterBlock, Kind::kAllgather,
                          Kind::kBcast, Kind::kScan, Kind::kGather}) {
    for (const std::size_t count : {1U, 65U, 4099U, 40'009U, 120'011U}) {
      for (const bool mapped : {false, true}) {
        for (const InSteps steps : {InSteps::kNone, InSteps::kBusy}) {
          run_call(*group, {.kind = kind, .count = count, .steps = steps, .mapped = mapped},
                   ++seed);
        }
      }
    }
  }
}

// Until all ways of long calls have been tried: faster_way.h.
void all_ways_of_long_calls_give_the_same_sums(BoardBootstrap& bootstrap, std::size_t threads) {
  const auto group = make_helped(bootstrap, threads);
  for (unsigned turn = 0; turn < 70; ++turn) {
    run_call(*group, {.count = 80'021, .in_place = turn % 2 == 1, .mapped = turn % 4 > 1}, turn);
  }
}

class LatePoll final : public Poll {
 public:
  void poll() override {
    if (++calls_ == 20) throw TimeoutError("waited for too long");
  }

 private:
  int calls_ = 0;
};

// Repeats a call until it throws.
template <class Expected>
std::string error_of_calls(NodeGroup& group, std::size_t count, double& seconds, Poll* poll) {
  Bytes send(count * sizeof(float)), recv(send.size());
  auto last = std::chrono::steady_clock::now();
  try {
    while (true) {
      perform(group, {.count = count}, send.data(), recv.data(), poll);
      last = std::chrono::steady_clock::now();
    }
  } catch (const Expected& error) {
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - last).count();
    return error.what();
  }
}

void a_killed_peer_is_lost_within_two_seconds(BoardBootstrap& bootstrap) {
  const auto group = make_helped(bootstrap, 2);
  if (group->rank() == 1) {
    const pid_t me = getpid();
    std::thread([me] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      kill(me, SIGKILL);
    }).detach();
  }
  double seconds = 0;
  const std::string message = error_of_calls<PeerLost>(*group, 300'000, seconds, nullptr);
  expect(contains(message, "rank 1"), "the lost rank is not named: " + message);
  expect(in_time(seconds, 2), "it took " + std::to_string(seconds) + " s");
}

void a_time_out_reaches_all_ranks(BoardBootstrap& bootstrap) {
  const auto group = make_helped(bootstrap, 2);
  run_call(*group, {.count = 300'000}, 1);
  double seconds = 0;
  LatePoll poll;
  if (group->rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const std::string message =
      error_of_calls<TimeoutError>(*group, 300'000, seconds, group->rank() == 0 ? &poll : nullptr);
  expect(contains(message, "waited for too long"), message);
  expect(in_time(seconds, 5), "it took " + std::to_string(seconds) + " s");
}

int run_all(const std::string& part) {
  Report report(part);
  report("slices_have_each_element_once", slices_have_each_element_once);
  report("each_slice_is_worked_on_once_also_by_many_callers (threads)",
         each_slice_is_worked_on_once_also_by_many_callers);
  report("exceptions_of_slices_reach_the_caller (threads)", exceptions_of_slices_reach_the_caller);
  report("helpers_block_all_signals (threads)", helpers_block_all_signals);
  report("helpers_sleep_when_no_call_is_active (threads)", helpers_sleep_when_no_call_is_active);
  report("each_thread_of_a_rank_needs_a_core", each_thread_of_a_rank_needs_a_core);
  report("a_forked_child_has_helpers_of_its_own", a_forked_child_has_helpers_of_its_own);
  report("helpers_run_on_the_cores_of_their_rank_wherever_the_caller_is_bound",
         helpers_run_on_the_cores_of_their_rank_wherever_the_caller_is_bound);
  report("after_their_end_callers_work_alone", after_their_end_callers_work_alone);
  for (const Ranks kind : {Ranks::kProcesses, Ranks::kThreads}) {
    const auto on = on_ranks(report, kind);
    on(2, "a_rank_without_enough_cores_has_no_helpers", a_rank_without_enough_cores_has_no_helpers);
    for (const int size : {2, 3}) {
      for (const std::size_t threads : {2U, 3U}) {
        const std::string each = ", " + std::to_string(threads) + " each";
        on(size, "results_have_the_bits_of_one_thread" + each, [&](BoardBootstrap& bootstrap) {
          results_have_the_bits_of_one_thread(bootstrap, threads);
        });
        on(size, "all_ways_of_long_calls_give_the_same_sums" + each,
           [&](BoardBootstrap& bootstrap) {
             all_ways_of_long_calls_give_the_same_sums(bootstrap, threads);
           });
      }
      on(size, "a_time_out_reaches_all_ranks", a_time_out_reaches_all_ranks);
    }
  }
  for (const int size : {2, 3}) {
    on_ranks(report, Ranks::kProcesses)(size, "a_killed_peer_is_lost_within_two_seconds",
                                        a_killed_peer_is_lost_within_two_seconds);
  }
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: helpers_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
