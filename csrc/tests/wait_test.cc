// When a waiter yields its core, tested with a clock of its own.
#include "node/memory/wait.h"

#include <cstdint>

#include "expect.h"

namespace gradred::testing {
namespace {

constexpr std::uint64_t kUs = 1000, kMs = 1000 * kUs;
constexpr std::uint64_t kNow = 10'000 * kMs;

void a_waiter_spins_before_it_yields() {
  const YieldTimes times;
  expect(!times.yields(19 * kUs, kNow), "spins at first");
  expect(times.yields(21 * kUs, kNow), "then yields");
}

// Both ranks have been put on one core.
void waits_whose_end_came_in_a_yield_yield_sooner() {
  YieldTimes times;
  for (int k = 0; k < 5; ++k) times.learn(3 * kUs, true, kNow + k * kMs);
  expect(times.yields(2 * kUs, kNow + 5 * kMs), "soon");
  expect(!times.yields(kUs / 2, kNow + 5 * kMs), "never at once");
}

void a_yield_that_another_program_has_had_is_the_last_one_for_a_while() {
  YieldTimes times;
  for (int k = 0; k < 5; ++k) times.learn(3 * kUs, true, kNow);
  times.learn(4 * kMs, false, kNow + 200 * kMs);
  expect(!times.yields(50 * kUs, kNow + 1100 * kMs), "it keeps its core");
  expect(!times.yields(19 * kUs, kNow + 1300 * kMs), "and spins as long as at first");
  expect(times.yields(21 * kUs, kNow + 1300 * kMs), "a second later it tries again");
}

// The peer, on the same core, computes in the yield.
void a_long_yield_soon_after_the_peer_was_met_changes_nothing() {
  YieldTimes times;
  for (int k = 0; k < 5; ++k) times.learn(3 * kUs, true, kNow);
  times.learn(4 * kMs, false, kNow + 50 * kMs);
  expect(times.yields(2 * kUs, kNow + 60 * kMs), "still yields soon");
}

void a_yield_that_nobody_wanted_teaches_nothing() {
  YieldTimes times;
  for (int k = 0; k < 100; ++k) times.learn(kUs / 2, k % 2 == 0, kNow + k * kUs);
  expect(!times.yields(19 * kUs, kNow + kMs), "spins as long");
  expect(times.yields(21 * kUs, kNow + kMs), "and then yields");
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  a_waiter_spins_before_it_yields();
  waits_whose_end_came_in_a_yield_yield_sooner();
  a_yield_that_another_program_has_had_is_the_last_one_for_a_while();
  a_long_yield_soon_after_the_peer_was_met_changes_nothing();
  a_yield_that_nobody_wanted_teaches_nothing();
  return report("wait_test");
}
