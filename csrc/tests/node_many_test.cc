// Many ranks in the shared memory of one host: the tree of flags, and groups that share a cache.

#include <cmath>
#include <random>

#include "node/agreement/flag_tree.h"
#include "node/group/cache_groups.h"
#include "node/paths/ways.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

NodeOptions with_tree() {
  NodeOptions options = small_paths();
  options.tree_ranks = 2;
  return options;
}

void short_calls_give_each_rank_its_result(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, with_tree());
  const std::size_t most = Announcement::kDataBytes;
  const auto ranks = static_cast<std::size_t>(group->size());
  unsigned seed = 0;
  for (std::size_t type = 0; type < kDTypes; ++type) {
    for (std::size_t op = 0; op < kOps; ++op) {
      Call call{.op = static_cast<Op>(op), .dtype = static_cast<DType>(type)};
      if (find_reduction(call.op, call.dtype) == nullptr) continue;
      call.count = seed % 3 == 0 ? most / size_of(call.dtype) : 1 + seed % 2;
      call.in_place = seed % 2 == 0;
      run_call(*group, call, ++seed);
    }
  }
  for (const Kind kind :
       {Kind::kAllreduce, Kind::kReduceScatterBlock, Kind::kAllgather, Kind::kBcast, Kind::kScan,
        Kind::kExscan, Kind::kGather, Kind::kScatter}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, most / 4 / ranks}) {
      for (const bool in_place : {false, true}) {
        if (in_place && has_root(kind) && has_blocks(kind)) continue;
        const int root = static_cast<int>(seed % ranks);
        run_call(*group, {.kind = kind, .count = count, .in_place = in_place, .root = root},
                 ++seed);
      }
    }
  }
}

// With these inputs another order of additions gives other bits.
void short_sums_have_the_bits_of_the_fold_in_rank_order(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, with_tree());
  const auto ranks = static_cast<std::size_t>(group->size());
  for (int turn = 0; turn < 60; ++turn) {
    std::vector<float> inputs;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<double>(rank + 1) * (turn + 1);
      inputs.push_back(static_cast<float>(std::sin(at) * std::pow(10, turn % 5 * std::cos(at))));
    }
    float expected = inputs[0], found = 0;
    for (std::size_t rank = 1; rank < ranks; ++rank) expected += inputs[rank];
    const float mine = inputs[static_cast<std::size_t>(group->rank())];
    const bool in_steps = turn % 4 == 3 && group->rank() % 3 == 0;  // the others wait in the call
    perform(*group, {.count = 1, .steps = in_steps ? InSteps::kBusy : InSteps::kNone}, &mine,
            &found);
    expect(std::memcmp(&found, &expected, sizeof found) == 0,
           "sum " + std::to_string(found) + " in place of " + std::to_string(expected));
  }
}

void what_others_have_gathered_is_read(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, with_tree());
  for (unsigned seed = 0; seed < 200; ++seed) run_call(*group, {.count = 2}, seed);
  std::uint64_t mine = group->ways().tree()->gathered_reads(), sum = 0;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group->size()));
  bootstrap.allgather(&mine, sizeof mine, all.data());
  for (const std::uint64_t one : all) sum += one;
  expect(sum > 0, "each rank has read the announcements of all");
}

// Of calls, ranks that gather and others; in the tree, in slots and by chunks.
void a_rank_that_disagrees_is_named_on_every_rank(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, with_tree());
  unsigned seed = 0;
  for (int odd_one = 0; odd_one < group->size(); odd_one += group->size() > 8 ? 5 : 1) {
    for (const std::size_t count : {3U, 500U, 16411U}) {
      const Call usual{.count = 2}, other{.count = count};
      const bool is_odd = group->rank() == odd_one;
      Bytes recv(1 << 17, std::byte{2});
      const Bytes before = recv, send(recv);
      for (const bool swapped : {false, true}) {
        const std::string message = message_of_usage_error(
            [&] { perform(*group, is_odd != swapped ? other : usual, send.data(), recv.data()); });
        expect(contains(message, "rank " + std::to_string(odd_one)) || is_odd || swapped,
               "the message does not name the rank: " + message);
        expect(contains(message, std::to_string(count)), "another text: " + message);
        expect(recv == before, "user memory was changed before the agreement");
        run_call(*group, usual, ++seed);
      }
    }
    if (group->rank() == odd_one) {
      group->abort("the array is read-only");
    } else {
      Bytes data(64);
      const std::string message =
          message_of_usage_error([&] { perform(*group, {.count = 2}, kInPlace, data.data()); });
      expect(contains(message, "rank " + std::to_string(odd_one)) && contains(message, "read-only"),
             "the message does not explain: " + message);
    }
    run_call(*group, {.count = 2}, ++seed);
  }
}

// Ranks that come first look at what was gathered long ago, of an operation whose number ends in
// the same 32 bits.
void what_was_gathered_long_ago_counts_for_no_later_call(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, with_tree());
  for (unsigned seed = 1; seed < 3; ++seed) run_call(*group, {.count = 2}, seed);
  ManyOperations::pass(*group, (std::uint64_t{1} << 32) - 2, bootstrap);
  for (unsigned seed = 3; seed < 6; ++seed) {
    if (group->rank() == 0) usleep(20'000);
    run_call(*group, {.count = 2}, seed);
  }
}

void a_killed_rank_is_lost_on_all_others(BoardBootstrap& bootstrap, int killed) {
  const auto group = make_group(bootstrap, with_tree());
  Bytes data(64);
  try {
    for (int turn = 0;; ++turn) {
      if (group->rank() == killed && turn == 50) kill(getpid(), SIGKILL);
      perform(*group, {.count = 2}, kInPlace, data.data());
    }
  } catch (const PeerLost& error) {
    expect(contains(error.what(), "rank " + std::to_string(killed)), error.what());
  }
}

// What linked_ranks() finds in latencies between ranks whose cache groups are these.
std::string groups_found(const std::vector<unsigned>& group_of, float near, float far,
                         bool jittered, bool one_is_late = false) {
  const std::size_t ranks = group_of.size();
  std::mt19937 draw(7);
  std::vector<float> latencies(ranks * ranks, 0);
  for (std::size_t a = 0; a < ranks; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      float latency = group_of[a] == group_of[b] ? near : far;
      // Some pairs were disturbed while they measured; a chain of others still joins their ranks.
      if (jittered) latency *= draw() % 9 == 0 ? 20.0F : 1 + static_cast<float>(draw() % 30) / 100;
      latencies[a * ranks + b] = latencies[b * ranks + a] = latency;
    }
  }
  if (one_is_late) latencies[ranks + 1] = kUnmeasured;
  std::string found;
  for (const std::uint32_t one : linked_ranks(latencies, ranks)) found += std::to_string(one);
  return found;
}

std::string groups_are_found_at_the_widest_gap() {
  const auto expect_found = [](const std::string& expected, const std::string& found) {
    return expected == found ? "" : "found " + found + ", not " + expected + "\n";
  };
  const std::vector<unsigned> halves{0, 0, 0, 0, 1, 1, 1, 1}, odd{5, 5, 5, 2, 2, 7, 7, 7, 2, 7};
  const std::string none(8, '0');
  std::string wrong;
  for (const bool jittered : {false, true}) {
    wrong += expect_found("00001111", groups_found(halves, 40, 250, jittered));
    wrong += expect_found("0001122212", groups_found(odd, 40, 250, jittered));
    wrong += expect_found(none, groups_found(halves, 100, 100, jittered));
  }
  wrong += expect_found("00001111", groups_found(halves, 100, 151, false));
  wrong += expect_found(none, groups_found(halves, 100, 149, false));
  wrong += expect_found(none, groups_found({0, 0, 0, 0, 0, 0, 0, 1}, 40, 250, false));
  wrong += expect_found(none, groups_found(halves, 40, 250, false, /*one_is_late=*/true));
  return wrong;
}

void all_ranks_know_the_same_groups(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  for (unsigned seed = 0; seed < 3; ++seed) {
    const std::vector<std::uint32_t> mine = measured_cache_groups(*group);
    std::vector<std::uint32_t> all(mine.size() * mine.size());
    bootstrap.allgather(mine.data(), mine.size() * sizeof mine[0], all.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      expect(all[i] == mine[i % mine.size()], "ranks know different groups");
    }
    run_call(*group, {.count = 9000}, seed);
  }
}

// As on a busy host: the time of one rank is over before it has measured anything.
void one_rank_without_time_ends_the_measurement_of_all(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  for (unsigned seed = 0; seed < 3; ++seed) {
    const std::uint64_t limit = group->rank() == 1 ? 0 : kMeasuringNs;
    for (const std::uint32_t one : measured_cache_groups(*group, limit)) {
      expect(one == 0, "there are groups that one rank has not measured");
    }
    run_call(*group, {.count = 9000}, seed);
    measured_cache_groups(*group);
  }
}

// In groups that do not follow from the ranks' numbers, too.
void the_tree_obeys_the_groups(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, with_tree());
  unsigned seed = 0;
  for (const unsigned groups : {2U, 3U}) {
    std::vector<std::uint32_t> group_of;
    for (int rank = 0; rank < group->size(); ++rank) {
      group_of.push_back(static_cast<unsigned>(rank * rank) % groups == 0 ? 0 : 1);
    }
    group->divide(group_of);
    for (unsigned turn = 0; turn < 40; ++turn) run_call(*group, {.count = 1 + turn % 12}, ++seed);
  }
}

// All data paths, among them that in groups, have the same bits.
void long_sums_in_groups_have_the_bits_of_the_fold_in_rank_order(BoardBootstrap& bootstrap,
                                                                 std::size_t groups) {
  NodeOptions options = small_paths();
  options.single_copy_bytes = ~std::size_t{0};
  const auto ranks = static_cast<std::size_t>(bootstrap.size()), each = ranks / groups;
  std::vector<std::uint32_t> group_of;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    group_of.push_back(static_cast<std::uint32_t>(rank / each));
  }
  for (const std::size_t count : {1031U, 4099U, 16411U, 40'009U, 131'071U}) {
    const auto group = make_group(bootstrap, options);  // which has tried no plan yet
    group->divide(group_of);
    std::vector<std::vector<float>> inputs(ranks);
    std::vector<const void*> pointers;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::mt19937 draw(static_cast<unsigned>(rank));
      for (std::size_t i = 0; i < count; ++i) {
        const auto whole = static_cast<float>(draw() % 20000) - 10000;
        inputs[rank].push_back(std::ldexp(whole, static_cast<int>(draw() % 40)));
      }
      pointers.push_back(inputs[rank].data());
    }
    std::vector<float> expected(count);
    find_reduction(Op::kSum, DType::kFloat32)->many(expected.data(), pointers.data(), ranks, count);
    for (unsigned turn = 0; turn < 12; ++turn) {
      std::vector<float> send = inputs[static_cast<std::size_t>(group->rank())], recv = send;
      const bool in_place = turn % 2 == 0;
      const auto steps = static_cast<InSteps>((turn / 2 + pointers.size()) % 4);
      perform(*group, {.count = count, .in_place = in_place, .steps = steps},
              in_place ? kInPlace : send.data(), recv.data());
      expect(recv == expected, "wrong bits of " + std::to_string(count));
    }
    expect(group->ways().long_ways().chunks().operations_in_groups() > 0, "none went by groups");
  }
}

void long_calls_in_groups_of_every_type(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  std::vector<std::uint32_t> group_of;
  for (int rank = 0; rank < group->size(); ++rank) {
    group_of.push_back(static_cast<std::uint32_t>(2 * rank / group->size()));
  }
  group->divide(group_of);
  unsigned seed = 0;
  for (int turn = 0; turn < 2; ++turn) {
    for (std::size_t type = 0; type < kDTypes; ++type) {
      for (std::size_t op = 0; op < kOps; ++op) {
        Call call{.op = static_cast<Op>(op), .dtype = static_cast<DType>(type)};
        if (find_reduction(call.op, call.dtype) == nullptr) continue;
        call.count = 20'011 / size_of(call.dtype);
        call.in_place = seed % 2 == 0;
        run_call(*group, call, ++seed);
      }
    }
  }
  expect(group->ways().long_ways().chunks().operations_in_groups() > 0, "none went by groups");
}

int run_all(const std::string& part) {
  Report report(part);
  for (const Ranks kind : {Ranks::kProcesses, Ranks::kThreads}) {
    const auto on = on_ranks(report, kind);
    const bool threads = kind == Ranks::kThreads;
    for (const int size : threads ? std::vector{5, 16} : std::vector{2, 3, 5, 8, 16, 32}) {
      on(size, "short_calls_give_each_rank_its_result", short_calls_give_each_rank_its_result);
      on(size, "short_sums_have_the_bits_of_the_fold_in_rank_order",
         short_sums_have_the_bits_of_the_fold_in_rank_order);
      on(size, "a_rank_that_disagrees_is_named_on_every_rank",
         a_rank_that_disagrees_is_named_on_every_rank);
    }
    for (const int size : {5, 16}) {
      on(size, "what_others_have_gathered_is_read", what_others_have_gathered_is_read);
      on(size, "what_was_gathered_long_ago_counts_for_no_later_call",
         what_was_gathered_long_ago_counts_for_no_later_call);
    }
  }
  report("groups_are_found_at_the_widest_gap", groups_are_found_at_the_widest_gap);
  for (const Ranks kind : {Ranks::kProcesses, Ranks::kThreads}) {
    const auto on = on_ranks(report, kind);
    for (const int size : {8, 9}) {
      on(size, "all_ranks_know_the_same_groups", all_ranks_know_the_same_groups);
      on(size, "one_rank_without_time_ends_the_measurement_of_all",
         one_rank_without_time_ends_the_measurement_of_all);
    }
    for (const int size : {5, 16}) on(size, "the_tree_obeys_the_groups", the_tree_obeys_the_groups);
    const std::pair<int, std::size_t> divisions[] = {{4, 2}, {6, 2}, {6, 3}, {9, 3}, {16, 4}};
    for (const auto& [size, groups] : divisions) {
      on(size,
         "long_sums_in_groups_have_the_bits_of_the_fold_in_rank_order, groups " +
             std::to_string(groups),
         [=](BoardBootstrap& bootstrap) {
           long_sums_in_groups_have_the_bits_of_the_fold_in_rank_order(bootstrap, groups);
         });
    }
    on(4, "long_calls_in_groups_of_every_type", long_calls_in_groups_of_every_type);
  }
  for (const int killed : {0, 6, 15}) {
    on_ranks(report, Ranks::kProcesses)(
        16, "a_killed_rank_is_lost_on_all_others",
        [=](BoardBootstrap& bootstrap) { a_killed_rank_is_lost_on_all_others(bootstrap, killed); });
  }
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: node_many_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
