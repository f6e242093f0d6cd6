// Operations with rank 0 as the leader: results, refusals and disagreements, mixed with other
// operations.

#include <random>

#include "node_calls.h"

namespace gradred::testing {
namespace {

// Rank 0 passes on the sums with all bits inverted, to simulate contributions from elsewhere.
// `refuses`: it refuses the operation once it has the sums.
void lead(NodeGroup& group, const NodeCall& made, bool refuses = false) {
  NodeExecution execution(group);
  NodeCall call = made;
  call.led = true;
  execution.start(call);
  while (!execution.advance()) {
    Sleep::until(execution.awaited(), 100'000'000);
  }
  expect(execution.leads() == (group.rank() == 0), "one leads");
  if (!execution.leads()) return;
  auto* const sums = static_cast<std::byte*>(call.recv);
  for (std::size_t i = 0; i < call.count * call.element; ++i) sums[i] = ~sums[i];
  if (refuses) {
    execution.start_refusal("other hosts do not agree");
    while (!execution.advance()) sched_yield();
  } else {
    execution.pass_on();
  }
}

void check_led(NodeGroup& group, const Call& call, unsigned seed) {
  const Case c = make_case(call, group.rank(), group.size(), seed);
  Bytes recv = c.recv, expected = c.expected;
  for (std::byte& byte : expected) byte = ~byte;
  lead(group, node_call(call, call.in_place ? kInPlace : c.send.data(), recv.data()));
  expect(recv == expected, "wrong result of a led operation: " + text_of(call, group.size()));
}

void what_the_leader_passes_on_is_the_result(BoardBootstrap& bootstrap) {
  NodeOptions options = small_paths();
  options.first_operation = (1ULL << 32) - 100;
  const auto group = make_group(bootstrap, options);
  std::mt19937 agreed(3), own(static_cast<unsigned>(group->rank()));
  for (unsigned i = 0; i < 200; ++i) {
    const std::size_t count = std::array<std::size_t, 6>{0, 1, 12, 13, 100, 140}[agreed() % 6];
    expect(group->may_lead(4 * count), "small enough to be led");
    if (own() % 8 == 0) usleep(static_cast<useconds_t>(own() % 200));
    if (agreed() % 3 == 0) run_call(*group, {.count = 50 * count}, i);
    check_led(*group, {.count = count, .in_place = agreed() % 2 == 0}, i);
  }
}

// Each rank in turn makes a different call, makes a call without a leader, or refuses. The leader
// refuses at once, or when it has the sums.
void a_led_operation_ends_in_an_error_for_all(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  for (unsigned i = 0; i < 60; ++i) {
    const int odd = static_cast<int>(i / 4) % group->size();
    Call call{.count = i % 3 == 0 ? 100U : 4U};
    Bytes data(4000);
    const bool is_odd = group->rank() == odd;
    const auto act = [&] {
      if (is_odd && i % 4 == 0) call.op = Op::kMax;
      if (is_odd && i % 4 == 1) {
        call.count = 900;
        return perform(*group, call, kInPlace, data.data());
      }
      if (i % 4 == 3 && group->rank() == 0) {
        lead(*group, node_call(call, kInPlace, data.data()), true);
        throw UsageError("refused");
      }
      lead(*group, node_call(call, kInPlace, data.data()));
    };
    if (is_odd && i % 4 == 2) {
      group->abort("the array is read-only");
    } else {
      const std::string message = message_of_usage_error(act);
      const std::array<std::string, 4> reasons = {"disagree", "disagree", "read-only", ""};
      expect(contains(message, reasons[i % 4]), "the message does not explain: " + message);
    }
    if (i % 2 == 1) check_led(*group, {.count = 7}, i);
    if (i % 5 == 4) run_call(*group, {.count = 300}, i);
  }
}

int run_all(const std::string& part) {
  Report report(part);
  for (const Ranks kind : {Ranks::kProcesses, Ranks::kThreads}) {
    for (const int size : {2, 3, 5}) {
      on_ranks(report, kind)(size, "what_the_leader_passes_on_is_the_result",
                             what_the_leader_passes_on_is_the_result);
      on_ranks(report, kind)(size, "a_led_operation_ends_in_an_error_for_all",
                             a_led_operation_ends_in_an_error_for_all);
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
