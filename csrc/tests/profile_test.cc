// The profile's sums and estimates, and its choice of the calls that it times.
#include "observe/profile.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "expect.h"

namespace gradred::testing {
namespace {

bool near(double value, double expected) { return std::abs(value - expected) < 1e-6 * expected; }

ProfileKey key(std::uint8_t size_class, Mode mode = Mode::kBlocking) {
  return {Kind::kAllreduce, Op::kSum, DType::kFloat32, mode, size_class};
}

// A blocking call as in Communicator::run_profiled. Returns true if it was timed.
bool call(ProfileRow& row, std::uint64_t ns, std::uint64_t waited = 0) {
  const bool times = row.times();
  row.waits() += waited;
  if (times) row.took(ns);
  row.count(8);
  row.plan_sample();
  return times;
}

void classes_hold_what_is_more_than_half_of_their_bound() {
  for (const auto& [bytes, expected] : std::vector<std::pair<std::size_t, int>>{
           {0, 0}, {1, 0}, {2, 1}, {3, 2}, {4, 2}, {5, 3}, {1024, 10}, {1025, 11}}) {
    expect(size_class_of(bytes) == expected, std::to_string(bytes) + " bytes");
  }
}

void every_longer_call_is_timed_and_a_few_of_the_shorter_ones() {
  ProfileRow brief(key(3), true, 2), longer(key(20), true, 2), by_messages(key(3), false, 2);
  int timed = 0;
  for (int i = 0; i < 10'016; ++i) timed += call(brief, 100) ? 1 : 0;
  expect(timed >= 16 + 10'000 / 3041 && timed <= 16 + 10'000 / 1024,
         std::to_string(timed) + " of 10,016 short calls");
  for (int i = 0; i < 100; ++i) {
    expect(call(longer, 100) && longer.looks(), "a longer call");
    expect(call(by_messages, 100), "a call by messages");
  }
}

// A call's number alone decides whether it is timed, so ranks agree without communication.
void ranks_look_at_the_same_calls() {
  ProfileRow one(key(3), true, 2), other(key(3), true, 2);
  for (int i = 0; i < 5000; ++i) {
    expect(call(one, 10) == call(other, 99'999, 5), "call " + std::to_string(i));
  }
}

void calls_that_fail_are_not_counted_and_the_next_is_looked_at() {
  ProfileRow row(key(3), true, 2);
  expect(row.times() && row.times(), "the first call, twice");
  call(row, 10);
  expect(row.calls() == 1, "one call has ended");
}

void time_of_untimed_calls_is_that_of_the_sample_and_long_waits_are_exact() {
  ProfileRow row(key(3), true, 2);
  for (int i = 0; i < 16; ++i) call(row, 10'000);  // the first calls are slow and few
  for (int i = 0; i < 9984; ++i) call(row, 300, i == 5 ? 1'000'000'000 : 0);
  const ProfileCounts counts = row.counts();
  expect(counts.calls == 10'000 && counts.bytes == 80'000, "calls and bytes");
  expect(counts.early_calls == 16 && counts.timed_calls < 40, "calls timed");
  expect(near(counts.time_ns(), 16 * 10'000.0 + 9984 * 300.0 + 1e9), "time");
}

void few_calls_have_the_time_of_the_early_ones() {
  ProfileRow row(key(3), true, 2);
  for (int i = 0; i < 20; ++i) call(row, 500);
  expect(row.counts().timed_calls == 0, "none after the early ones was timed");
  expect(near(row.counts().time_ns(), 20 * 500.0), "time");
  expect(ProfileCounts{}.time_ns() == 0, "no call, no time");
}

void started_calls_end_on_any_thread() {
  ProfileRow row(key(3, Mode::kStarted), true, 2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 1000; ++n) {
        row.ended(8, 50);
        row.exposed(20);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const ProfileCounts counts = row.counts();
  expect(counts.calls == 4000 && counts.bytes == 32'000, "calls");
  expect(near(counts.time_ns(), 4000 * 50.0) && counts.exposed_ns == 80'000, "times");
}

void what_a_freed_communicator_counted_is_kept() {
  const Call one{.kind = Kind::kAllreduce, .count = 2, .dtype = DType::kFloat32};
  const Call larger{.kind = Kind::kAllreduce, .count = 1000, .dtype = DType::kFloat32};
  {
    Profile first, second;
    first.set_up(false, {0, 1}, 10);
    second.set_up(false, {0, 1}, 20);
    for (Profile* profile : {&first, &second}) {
      call(profile->row(one, Mode::kBlocking), 5);
      call(profile->row(larger, Mode::kBlocking), 7);
      profile->row(one, Mode::kStarted).ended(8, 3);
      expect(&profile->row(one, Mode::kBlocking) != &profile->row(one, Mode::kStarted), "modes");
    }
    expect(profile_totals().rows.size() == 3, "rows while they live");
    expect(first.count_untimed(one, Mode::kBlocking) == nullptr, "an early call is timed");
  }
  const ProfileTotals totals = profile_totals();
  expect(totals.set_ups == 2 && totals.set_up_ns == 30, "set-ups");
  expect(totals.rows.size() == 3, "rows after they were freed");
  expect(totals.rows.at(key(3)).counts.calls == 2, "calls after they were freed");
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  classes_hold_what_is_more_than_half_of_their_bound();
  every_longer_call_is_timed_and_a_few_of_the_shorter_ones();
  ranks_look_at_the_same_calls();
  calls_that_fail_are_not_counted_and_the_next_is_looked_at();
  time_of_untimed_calls_is_that_of_the_sample_and_long_waits_are_exact();
  few_calls_have_the_time_of_the_early_ones();
  started_calls_end_on_any_thread();
  what_a_freed_communicator_counted_is_kept();
  return gradred::testing::report("profile");
}
