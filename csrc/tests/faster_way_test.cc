// How rank 0 chooses between the data paths of long operations, tested without ranks.
#include "node/paths/faster_way.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "expect.h"

namespace gradred::testing {
namespace {

using Calls = FasterWay::Calls;

// Runs `operations` of this kind. `ns` returns the time of one, given its plan and the number of
// calls by it in a row. Returns how many went by each plan.
template <class Ns>
std::array<int, 4> carry_out(FasterWay& ways, const Calls& calls, int operations, Ns ns) {
  std::array<int, 4> went{};
  Way before = Way::kChunks;
  int in_a_row = 0;
  for (int i = 0; i < operations; ++i) {
    const Way way = ways.choose(calls);
    in_a_row = way == before ? in_a_row + 1 : 1;
    before = way;
    ++went[static_cast<std::size_t>(way)];
    ways.took(calls, way, ns(way, in_a_row));
  }
  return went;
}

std::uint64_t settled(Way way, int /*in_a_row*/) {
  return std::array<std::uint64_t, 4>{2600, 3500, 1800, 2400}[static_cast<std::size_t>(way)];
}

Calls calls_of(std::size_t bytes, bool reads = true) { return {.bytes = bytes, .reads = reads}; }

void the_fastest_is_taken() {
  for (const std::size_t bytes : {std::size_t{256} << 10, std::size_t{64} << 20}) {
    FasterWay ways;
    carry_out(ways, calls_of(bytes), 300, settled);
    expect(carry_out(ways, calls_of(bytes), 200, settled)[2] == 200, "reading");
  }
}

// Reading takes up to twice as long while the caches are as chunks have left them.
void a_plan_that_is_slow_at_first_is_tried_in_a_row() {
  FasterWay ways;
  const auto ns = [](Way way, int in_a_row) {
    constexpr std::array<std::uint64_t, 5> kCold{3100, 3000, 2700, 2500, 2300};
    const auto turn = static_cast<std::size_t>(in_a_row) - 1;
    return way == Way::kReading && turn < kCold.size() ? kCold[turn] : settled(way, in_a_row);
  };
  carry_out(ways, calls_of(16 << 20), 50, ns);
  expect(carry_out(ways, calls_of(16 << 20), 14, ns)[2] == 14, "reading, once it is warm");
}

// A program that makes its results anew touches the memory of two in the first two calls.
void calls_that_touch_memory_first_say_nothing_of_their_plan() {
  FasterWay ways;
  int calls = 0;
  const auto ns = [&](Way way, int in_a_row) {
    if (++calls <= 2) return std::uint64_t{9000};
    return way == Way::kChunks ? std::uint64_t{900} : settled(way, in_a_row);
  };
  carry_out(ways, calls_of(256 << 10), 50, ns);
  const int chunks = carry_out(ways, calls_of(256 << 10), 14, ns)[0];
  expect(chunks == 14, "chunks in " + std::to_string(chunks) + " of 14 calls");
}

// The first trial of each plan came too early.
void plans_are_tried_again_among_the_first_hundreds_of_calls() {
  FasterWay ways;
  int calls = 0;
  const auto ns = [&](Way way, int in_a_row) {
    if (++calls <= 60 && way == Way::kChunks) return std::uint64_t{9000};
    return way == Way::kChunks ? std::uint64_t{900} : settled(way, in_a_row);
  };
  carry_out(ways, calls_of(256 << 10), 300, ns);
  const int chunks = carry_out(ways, calls_of(256 << 10), 200, ns)[0];
  expect(chunks == 200, "chunks in " + std::to_string(chunks) + " of 200 calls");
}

void a_hopeless_trial_is_short() {
  FasterWay ways;
  const auto went = carry_out(ways, calls_of(1 << 20), 512, [](Way way, int) {
    return way == Way::kChunks ? std::uint64_t{1000} : std::uint64_t{1400};
  });
  expect(went[0] == 512 - 3 * (6 + 4), "two calls of each other plan, and twice four");
}

void what_cannot_be_read_is_not_tried() {
  FasterWay ways;
  const auto went = carry_out(ways, calls_of(1 << 20, false), 2000, settled);
  expect(went[2] == 0 && went[3] == 0, "chunks only");
}

void a_change_is_noticed() {
  FasterWay ways;
  carry_out(ways, calls_of(1 << 20), 600, settled);
  const auto moved = [](Way way, int in_a_row) {  // ranks that share a cache by now
    return way <= Way::kChunksPast ? std::uint64_t{900} : settled(way, in_a_row);
  };
  carry_out(ways, calls_of(1 << 20), 20'000, moved);
  const auto went = carry_out(ways, calls_of(1 << 20), 100, moved);
  expect(went[0] + went[1] == 100, "chunks");
}

void a_plan_that_has_slowed_is_compared_at_once() {
  for (const std::size_t bytes : {std::size_t{1} << 20, std::size_t{64} << 20}) {
    FasterWay ways;
    carry_out(ways, calls_of(bytes), 700, settled);
    const auto moved = [](Way way, int) {  // chunks still count as slower, from before
      return way == Way::kReading ? std::uint64_t{2320} : std::uint64_t{900};
    };
    const auto first = carry_out(ways, calls_of(bytes), 100, moved);
    expect(first[2] < 32,
           "the plan that has slowed went on for " + std::to_string(first[2]) + " of 100 calls");
    expect(carry_out(ways, calls_of(bytes), 100, moved)[2] == 0, "and is not taken any more");
  }
}

void a_machine_that_is_busy_is_no_reason_to_compare_for_ever() {
  FasterWay ways;
  carry_out(ways, calls_of(1 << 20), 600, settled);
  int calls = 0;
  const auto busy = [&](Way way, int in_a_row) {  // in every other hundred of calls
    return settled(way, in_a_row) * (++calls / 100 % 2 == 0 ? 1U : 3U);
  };
  const auto went = carry_out(ways, calls_of(1 << 20), 4000, busy);
  expect(went[2] > 2400, "the fastest plan only in " + std::to_string(went[2]) + " of 4000 calls");
}

void one_late_rank_is_no_reason_to_compare() {
  FasterWay ways;
  carry_out(ways, calls_of(1 << 20), 600, settled);
  int calls = 0;
  const auto late = [&](Way way, int in_a_row) {
    return settled(way, in_a_row) * (++calls % 5 == 0 ? 20U : 1U);
  };
  expect(carry_out(ways, calls_of(1 << 20), 400, late)[2] == 400, "nothing has changed");
}

// Floats of 16 bits do not go by groups, and other types of their length may.
void what_does_not_go_by_groups_never_does() {
  FasterWay ways;
  FasterWay::Calls calls = calls_of(1 << 20);
  calls.in_groups = true;
  for (int i = 0; i < 200; ++i) {
    const Way way = ways.choose(calls);
    ways.took(calls, way, way == Way::kChunksInGroups ? 100'000 : 1'000'000);
  }
  expect(ways.choose(calls) == Way::kChunksInGroups, "groups are fastest");
  calls.in_groups = false;
  for (int i = 0; i < 700; ++i) {
    const Way way = ways.choose(calls);
    expect(way != Way::kChunksInGroups, "it goes by groups");
    ways.took(calls, way, 1'000'000);
  }
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  the_fastest_is_taken();
  a_plan_that_is_slow_at_first_is_tried_in_a_row();
  calls_that_touch_memory_first_say_nothing_of_their_plan();
  plans_are_tried_again_among_the_first_hundreds_of_calls();
  a_hopeless_trial_is_short();
  what_cannot_be_read_is_not_tried();
  a_change_is_noticed();
  a_plan_that_has_slowed_is_compared_at_once();
  a_machine_that_is_busy_is_no_reason_to_compare_for_ever();
  one_late_rank_is_no_reason_to_compare();
  what_does_not_go_by_groups_never_does();
  return report("faster_way_test");
}
