// The shared-memory collectives of one host: results, agreement between ranks, and waits.

#include <algorithm>
#include <chrono>
#include <random>

#include "base/clock.h"
#include "node/memory/process_memory.h"
#include "node/paths/ways.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

void allreduce_equals_the_fold_in_rank_order(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  unsigned seed = 0;
  for (const std::size_t count : {0U, 1U, 2U, 7U, 12U, 13U, 97U, 1024U, 1031U, 4099U, 16411U}) {
    for (const bool in_place : {false, true}) {
      run_call(*group, {.count = count, .in_place = in_place}, ++seed);
    }
  }
  for (std::size_t type = 0; type < kDTypes; ++type) {
    for (std::size_t op = 0; op < kOps; ++op) {
      Call call{.op = static_cast<Op>(op), .dtype = static_cast<DType>(type)};
      if (find_reduction(call.op, call.dtype) == nullptr) continue;
      for (const std::size_t count : {3U, 211U, 2503U}) {
        call.count = count;
        call.in_place = !call.in_place;
        run_call(*group, call, ++seed);
      }
    }
  }
}

void default_sizes_give_exact_sums(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, {});
  for (const std::size_t count : {5U, 8191U, 20011U, 40009U, 600'011U, 1'200'017U}) {
    std::vector<std::int32_t> send(count), recv(count, -1);
    for (std::size_t i = 0; i < count; ++i) {
      send[i] = static_cast<std::int32_t>(i % 1000) * (group->rank() + 1);
    }
    perform(*group, {.dtype = DType::kInt32, .count = count}, send.data(), recv.data());
    const int ranks = group->size() * (group->size() + 1) / 2;
    for (std::size_t i = 0; i < count; ++i) {
      expect(recv[i] == static_cast<std::int32_t>(i % 1000) * ranks, "wrong sum");
    }
  }
}

const SingleCopy& reading(NodeGroup& group) { return group.ways().long_ways().single_copy(); }

// Rank 0 tries both kinds of stores in the first operations of each size.
void slots_are_written_in_both_ways(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, {});
  unsigned seed = 0;
  for (const std::size_t count : {511U, 600U, 1031U, 2503U, 5003U, 10'007U, 30'011U}) {
    const std::uint64_t before = group->ways().stores().written_past();
    for (unsigned turn = 0; turn < 10; ++turn) {
      run_call(*group, {.count = count, .in_place = turn % 2 == 0}, ++seed);
    }
    const std::uint64_t past = group->ways().stores().written_past() - before;
    const bool through_slots = group->options().fits_slots(4 * count, group->size());
    if (count < 512) expect(past == 0, "below 2 KiB");
    if (count >= 512 && group->size() > 1 && through_slots) {
      expect(past >= 4 && past <= 6, std::to_string(past) + " of 10 past the caches");
    }
  }
}

void the_other_collectives_move_the_right_blocks(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  unsigned seed = 0;
  for (const Kind kind : {Kind::kReduceScatterBlock, Kind::kAllgather, Kind::kBcast, Kind::kScan,
                          Kind::kExscan, Kind::kGather, Kind::kScatter}) {
    for (const std::size_t count : {0U, 1U, 2U, 13U, 257U, 2048U, 12011U}) {
      for (const bool in_place : {false, true}) {
        if (in_place && has_root(kind) && has_blocks(kind)) continue;
        const int root = static_cast<int>(count) % group->size();
        run_call(*group, {.kind = kind, .count = count, .in_place = in_place, .root = root},
                 ++seed);
      }
    }
  }
}

// Number of elements from each rank to each rank, at most `scale`.
std::vector<std::size_t> splits_of(std::size_t scale, std::size_t ranks, unsigned way) {
  std::vector<std::size_t> splits;
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      if (way == 0) splits.push_back(scale);                                // equal
      if (way == 1) splits.push_back(from == 0 ? scale : 0);                // a scatter
      if (way == 2) splits.push_back(to + 1 == ranks ? scale : 0);          // a gather
      if (way == 3) splits.push_back((7 * from + 5 * to) % 3 * scale / 2);  // mixed
      if (way == 4) splits.push_back(from == to ? scale : 0);  // only from a rank to itself
    }
  }
  return splits;
}

// The expected value at `index` of the data from one rank to another.
std::uint32_t mark_of(std::size_t from, std::size_t to, std::size_t index) {
  return static_cast<std::uint32_t>(from << 28 | to << 24 | (index & 0xffffff));
}

// Appends the data from one rank to another.
void append_marks(std::vector<std::uint32_t>& to_all, std::size_t from, std::size_t to,
                  std::size_t count) {
  const std::size_t begin = to_all.size();
  to_all.resize(begin + count);
  std::uint32_t* const marks = to_all.data() + begin;
  for (std::size_t i = 0; i < count; ++i) marks[i] = mark_of(from, to, i);
}

void swap_all(NodeGroup& group, const std::vector<std::size_t>& splits, InSteps steps) {
  const auto size = static_cast<std::size_t>(group.size());
  const auto me = static_cast<std::size_t>(group.rank());
  std::vector<std::uint32_t> send, expected;
  std::size_t most = 0;
  for (std::size_t other = 0; other < size; ++other) {
    append_marks(send, me, other, splits[me * size + other]);
    append_marks(expected, other, me, splits[other * size + me]);
    std::size_t gives = 0;
    for (std::size_t to = 0; to < size; ++to) gives += splits[other * size + to];
    most = std::max(most, gives);
  }
  constexpr std::uint32_t kFence = 0x5a5a5a5a;
  std::vector<std::uint32_t> recv(expected.size() + 2, kFence);
  const NodeCall call{.kind = Kind::kAlltoall,
                      .send = send.data(),
                      .recv = recv.data() + 1,
                      .count = most,
                      .element = sizeof(std::uint32_t),
                      .signature = make_signature(Kind::kAlltoall, Op::kSum, DType::kUInt32, most),
                      .splits = splits.data()};
  steps == InSteps::kNone ? group.run(call) : run_in_steps(group, call, steps, nullptr);
  expect(std::equal(expected.begin(), expected.end(), recv.begin() + 1), "wrong alltoall");
  expect(recv.front() == kFence && recv.back() == kFence, "written outside of the result");
}

void alltoall_moves_what_each_rank_has_for_each(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  for (const std::size_t scale : {0U, 1U, 3U, 100U, 2050U, 9001U, 30'011U}) {
    for (unsigned way = 0; way < 5; ++way) {
      const std::vector<std::size_t> splits =
          splits_of(scale, static_cast<std::size_t>(group->size()), way);
      for (const InSteps steps : {InSteps::kNone, InSteps::kBusy, InSteps::kAsleep}) {
        for (int turn = 0; turn < 3; ++turn) swap_all(*group, splits, steps);
      }
      run_call(*group, {.count = 300}, way);
    }
  }
}

// The ends of the ranks' parts of a vector. They are unequal in many forms, including empty parts.
std::vector<std::size_t> parts_of(std::size_t count, std::size_t ranks, unsigned way) {
  std::vector<std::size_t> parts{0};
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    if (way == 0) parts.push_back(count * rank / ranks);
    if (way == 1) parts.push_back(count);  // all in the first part
    if (way == 2)
      parts.push_back(rank + 1 < ranks ? 0 : count);  // the last two parts, or the last one
    if (way == 3) parts.push_back(std::max(parts.back(), count - count / (rank + 1)));
  }
  parts.push_back(count);
  return parts;
}

// Each rank combines its part, then shares it. Together this is an allreduce.
void parts_of_a_vector_are_combined_and_shared(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  const auto ranks = static_cast<std::size_t>(group->size());
  unsigned seed = 0;
  for (const std::size_t count : {0U, 1U, 3U, 12U, 13U, 900U, 4099U, 30'011U}) {
    for (unsigned way = 0; way < 8; ++way) {
      const Call call{.count = count, .in_place = way >= 4};
      const auto parts = parts_of(count, ranks, way % 4);
      const Case c = make_case(call, group->rank(), group->size(), ++seed);
      Bytes recv = c.recv;
      NodeCall made = node_call(call, call.in_place ? kInPlace : c.send.data(), recv.data());
      made.parts = parts.data();
      const auto steps = static_cast<InSteps>((seed + static_cast<unsigned>(group->rank())) % 4);
      for (const Kind kind : {Kind::kReduceScatterBlock, Kind::kAllgather}) {
        made.kind = kind;
        if (kind == Kind::kAllgather) made.send = kInPlace;
        if (steps == InSteps::kNone) {
          group->run(made);
        } else {
          run_in_steps(*group, made, steps, nullptr);
        }
      }
      expect(recv == c.expected, "wrong sums: " + text_of(call, group->size()));
      const Bytes unchanged = make_case(call, group->rank(), group->size(), seed).send;
      expect(c.send == unchanged, "the input has changed: " + text_of(call, group->size()));
    }
    run_call(*group, {.count = 1000}, seed);
  }
}

// Consecutive operations of any kind and size must not disturb each other, even when the low 32
// bits of the operation number wrap around.
void mixed_operations_back_to_back(BoardBootstrap& bootstrap) {
  NodeOptions options = small_paths();
  options.first_operation = (1ULL << 32) - 150;
  const auto group = make_group(bootstrap, options);
  std::mt19937 agreed(7), own(static_cast<unsigned>(group->rank()));
  const std::size_t counts[] = {1, 2, 12, 13, 100, 900, 1100, 3000, 9000, 17000};
  for (unsigned i = 0; i < 170; ++i) {
    Call call{.kind = static_cast<Kind>(agreed() % 4),
              .count = counts[agreed() % std::size(counts)]};
    call.in_place = agreed() % 2 == 0;
    call.root = static_cast<int>(agreed() % static_cast<unsigned>(group->size()));
    call.steps = static_cast<InSteps>(own() % 4);
    if (own() % 8 == 0) usleep(static_cast<useconds_t>(own() % 200));
    run_call(*group, call, i);
  }
}

// Whether ranks far outnumber cores, or a sanitizer records each access. Then tests skip the
// longest vectors.
bool is_slow(int ranks) {
#ifdef __SANITIZE_THREAD__
  return ranks > 1;
#else
  return ranks > 3;
#endif
}

// Repeats a call of one kind and size until the deciding rank has tried all data paths, in place
// and out of place.
void all_ways(NodeGroup& group, Call call, unsigned& seed) {
  for (unsigned turn = 0; turn < 16; ++turn) {
    call.in_place = turn % 2 == 0 && !(has_root(call.kind) && has_blocks(call.kind));
    call.steps = static_cast<InSteps>((turn / 2 + static_cast<unsigned>(group.rank())) % 4);
    run_call(group, call, ++seed);
  }
}

constexpr Kind kReadKinds[] = {Kind::kAllreduce, Kind::kAllgather, Kind::kBcast,  Kind::kScan,
                               Kind::kExscan,    Kind::kGather,    Kind::kScatter};

bool kernel_reads() {  // some containers forbid it
  std::byte found{};
  const int here = 0;
  return read_process(getpid(), &found, &here, 1) == 0;
}

void long_operations_read_peers_memory(BoardBootstrap& bootstrap, Kind kind) {
  const auto group = make_group(bootstrap, small_paths());
  unsigned seed = 0;
  std::uint64_t sizes = 0;
  // Each between other powers of two of bytes, so that the deciding rank tries each.
  for (const std::size_t count : {20'000U, 40'011U, 140'011U, 300'001U}) {
    if (count > (is_slow(group->size()) ? 40'011 : 300'001)) continue;
    const DType type = sizes++ % 2 == 0 ? DType::kFloat32 : DType::kInt64;
    const int root = static_cast<int>(count) % group->size();
    all_ways(*group, {.kind = kind, .dtype = type, .count = count, .root = root}, seed);
  }
  if (group->size() > 1 && kernel_reads()) {
    expect(reading(*group).operations() >= 2 * sizes,
           "only " + std::to_string(reading(*group).operations()) + " were done by reading");
    const bool all_write = kind == Kind::kAllreduce || kind == Kind::kAllgather;
    if (all_write)
      expect(group->ways().stores().written_past() > 0, "and in chunks written past the caches");
  }
}

// Whether one rank reads another one's memory in a call whose root is rank 0.
bool reads(Kind kind, int one, int other) {
  if (one == other) return false;
  if (sums_differ(kind)) return other < one;
  if (info_of(kind).result == Part::kRoots) return one == 0;
  return info_of(kind).input != Part::kRoots || other == 0;
}

// Arrays of all ranks, or of some, are in memory that peers may map. Peers then read them directly,
// or through the kernel. The files are opened and closed meanwhile.
void long_operations_read_mapped_memory(BoardBootstrap& bootstrap, Kind kind) {
  unsigned seed = 0;
  for (const bool all : {true, false}) {
    const auto group = make_group(bootstrap, small_paths());
    Call call{.kind = kind, .count = 40'011};
    call.mapped = all || group->rank() % 2 == 0;
    all_ways(*group, call, seed);
    if (!kernel_reads()) continue;
    std::uint64_t mapped = 0;  // number of mapped peers that this rank reads
    for (int rank = 0; rank < group->size(); ++rank) {
      if (reads(kind, group->rank(), rank) && (all || rank % 2 == 0)) ++mapped;
    }
    expect(reading(*group).operations() > 0, "none was done by reading");
    expect(reading(*group).mapped_reads() == mapped * reading(*group).operations(),
           "not where they are mapped");
  }
}

// The deciding rank sends little, and another rank sends much. In chunks such a call has many
// waits. As each wait takes a long time here, reading the peers' memory is faster.
void uneven_alltoalls_learn_the_faster_way(BoardBootstrap& bootstrap) {
  NodeOptions options = small_paths();
  options.chunk_bytes = options.piece_bytes = 4096;
  std::byte found{};
  if (read_process(getpid(), &found, &options, 1) != 0) return;  // some containers forbid it
  const auto group = make_group(bootstrap, options);
  const auto size = static_cast<std::size_t>(group->size());
  std::vector<std::size_t> splits(size * size, 10);
  for (std::size_t to = 0; to < size; ++to) splits[(size - 1) * size + to] = 50'000;
  constexpr unsigned kTurns = 30;
  for (unsigned turn = 0; turn < kTurns; ++turn) swap_all(*group, splits, InSteps::kSeldom);
  expect(reading(*group).operations() > kTurns / 2,
         "only " + std::to_string(reading(*group).operations()) + " were done by reading");
}

// A call of each kind that goes chunk by chunk, and an allreduce of each chunked data path.
std::vector<Call> chunked_calls() {
  return {{.count = 9000},
          {.count = 40'000},
          {.kind = Kind::kReduceScatterBlock, .count = 12'011},
          {.kind = Kind::kAllgather, .count = 12'011},
          {.kind = Kind::kBcast, .count = 12'011, .root = 1}};
}

// Ranks count the steps of chunks in shared memory. However long ago an earlier operation has
// counted its last step, a later one must not take that count for its own. Otherwise a rank would
// read data before its peer has written it. The rank that comes first changes, so that each rank
// could read too early.
void old_steps_count_for_no_later_operation(BoardBootstrap& bootstrap, std::uint64_t first) {
  NodeOptions options = small_paths();
  options.first_operation = first;
  const auto group = make_group(bootstrap, options);
  const std::vector<Call> calls = chunked_calls();
  unsigned seed = 0;
  for (unsigned bits = 1; bits < 40; bits += is_slow(group->size()) ? 4 : 1) {
    for (const int beside : {-2, -1, 0, 1, 2}) {
      const std::uint64_t gap = (std::uint64_t{1} << bits) + static_cast<std::uint64_t>(beside);
      const Call& before = calls[seed % calls.size()];
      const Call& after = calls[seed / calls.size() % calls.size()];
      run_call(*group, before, ++seed);
      ManyOperations::pass(*group, gap, bootstrap);
      run_call(*group, {.count = 3}, seed);
      if (static_cast<int>(seed) % group->size() == group->rank()) usleep(200);
      run_call(*group, after, ++seed);
    }
  }
}

// The same test without a preset number: 2^31 and some small allreduces at full speed, which take
// minutes.
void after_two_billion_allreduces_the_next_large_one_is_right(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, {});
  const Call small{.count = 2}, large{.count = 2 << 20};
  run_call(*group, large, 1);
  std::vector<float> send(2), recv(2);
  const NodeCall call = node_call(small, send.data(), recv.data());
  const auto start = std::chrono::steady_clock::now();
  constexpr std::uint64_t kMany = (std::uint64_t{1} << 31) + 5;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    group->run(call);
    if (group->rank() == 0 && i % (kMany >> 4) == 0) {
      std::fprintf(stderr, "%llu of %llu\n", static_cast<unsigned long long>(i),
                   static_cast<unsigned long long>(kMany));
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (group->rank() == 0) {
    std::fprintf(stderr, "%llu allreduces took %.0f s\n", static_cast<unsigned long long>(kMany),
                 took.count());
  }
  for (unsigned seed = 2; seed < 6; ++seed) run_call(*group, large, seed);
}

void many_more_ranks_than_cores(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  unsigned seed = 0;
  for (const std::size_t count : {1U, 12U, 15U, 1000U, 5000U}) {
    run_call(*group, {.count = count}, ++seed);
  }
}

void disagreement_is_a_usage_error_on_every_rank(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  const bool odd_one = group->rank() == group->size() - 1;
  const Call usual{.count = 8}, large{.count = 16411};
  Call other_op = usual, other_type = usual, other_kind = usual, other_root = usual;
  other_op.op = Op::kMax;
  other_type.dtype = DType::kInt32;
  other_kind.kind = Kind::kAllgather;
  other_root.root = 1;  // part of Signature::detail
  const std::pair<Call, Call> pairs[] = {{usual, large},      {large, usual},
                                         {usual, other_op},   {usual, other_type},
                                         {usual, other_kind}, {usual, other_root}};
  unsigned seed = 0;
  for (const auto& [mine, theirs] : pairs) {
    Call call = odd_one ? theirs : mine;
    call.steps = static_cast<InSteps>(seed / 2 % 4);
    Bytes send(1 << 20, std::byte{1}), recv(1 << 20, std::byte{2});
    const Bytes before = recv;
    const std::string message =
        message_of_usage_error([&] { perform(*group, call, send.data(), recv.data()); });
    for (const Call& asked : {mine, theirs}) {
      expect(
          contains(message, describe(make_signature(asked.kind, asked.op, asked.dtype, asked.count,
                                                    static_cast<std::uint64_t>(asked.root)))),
          "the message lacks a signature: " + message);
    }
    expect(recv == before, "user memory was changed before the agreement");
    run_call(*group, usual, ++seed);
    run_call(*group, large, ++seed);
  }
}

void an_aborted_call_is_explained_to_the_peers(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  for (unsigned i = 0; i < 40; ++i) {
    const int culprit = static_cast<int>(i / 2) % group->size();  // twice in a row
    const Call call{.count = i % 3 == 0 ? 9000U : 4U, .steps = static_cast<InSteps>(i / 2 % 4)};
    if (group->rank() == culprit && i % 4 < 2) {
      group->abort("the array is read-only");
    } else if (group->rank() == culprit) {
      NodeExecution refusal(*group);
      refusal.start_refusal(group->refused_text("the array is read-only"));
      while (!refusal.advance()) sched_yield();
    } else {
      Bytes data(1 << 16);
      const std::string message =
          message_of_usage_error([&] { perform(*group, call, kInPlace, data.data()); });
      expect(contains(message, "rank " + std::to_string(culprit)) &&
                 contains(message, "the array is read-only"),
             "the message does not explain: " + message);
    }
    if (i % 4 == 3) run_call(*group, call, i);
  }
}

// A rank may end right after its last operation, here an aborted one. Other ranks may still wait in
// that operation for a third rank.
void a_rank_that_has_finished_is_not_missed(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  if (group->rank() == 1) return group->abort("no such type");
  if (group->rank() == 2) usleep(300'000);
  Bytes data(16);
  const auto message =
      message_of_usage_error([&] { perform(*group, {.count = 4}, kInPlace, data.data()); });
  expect(contains(message, "no such type"), message);
}

void memory_that_is_lacking_is_refused_on_every_rank(BoardBootstrap& bootstrap) {
  NodeOptions options;
  options.chunk_bytes = 1ULL << 50;
  std::string reason;
  expect(NodeGroup::create(bootstrap, options, reason) == nullptr, "a petabyte was granted");
  expect(contains(reason, "rank 0") && contains(reason, "memory"), "reason: " + reason);
  expect(NodeGroup::create(bootstrap, small_paths(), reason) != nullptr, "no group afterwards");
}

// In every third operation all ranks publish their arrival times. Aborted and differing operations
// come in between. After these, an entry would be reused too early without the rule at the top of
// group.h.
void arrivals_are_those_of_the_same_operation(BoardBootstrap& bootstrap) {
  auto group = make_group(bootstrap, small_paths());
  const auto time_of = [](std::uint64_t operation, int rank) {
    return 1000 * operation + static_cast<std::uint64_t>(rank) + 1;
  };
  std::vector<float> data(3000, 1.0F);
  for (std::uint64_t operation = 1; operation <= 600; ++operation) {
    const int odd_one = static_cast<int>(operation) % group->size();
    const bool publishes = operation % 3 == 0;
    if (publishes) group->arrive(time_of(operation, group->rank()));
    if (operation % 7 == 0 && group->size() > 1 && odd_one == group->rank()) {
      group->abort("a test");
      continue;
    }
    const std::size_t count = operation % 5 == 0 ? 3000 : operation % 2 == 0 ? 500 : 5;
    try {
      group->run(node_call({.op = Op::kMax, .count = count}, kInPlace, data.data()));
    } catch (const UsageError&) {
      continue;
    }
    for (int rank = 0; rank < group->size(); ++rank) {
      const std::uint64_t found = group->arrival_ns(rank);
      expect(found == (publishes ? time_of(operation, rank) : 0),
             "operation " + std::to_string(operation) + ": rank " + std::to_string(rank) +
                 " came at " + std::to_string(found));
    }
  }
}

void long_waits_are_timed(BoardBootstrap& bootstrap) {
  auto group = make_group(bootstrap, small_paths());
  std::atomic<std::uint64_t> sum{0};
  group->charge_long_waits(sum);
  const NodeCall call{.signature = make_signature(Kind::kAllreduce, Op::kSum, DType::kUInt8, 0)};
  group->run(call);
  bootstrap.barrier();
  sum = 0;
  if (group->rank() == 0) usleep(30'000);
  group->run(call);
  const std::uint64_t waited = sum;
  expect(group->rank() == 0 || waited >= 25'000'000, "waited " + std::to_string(waited) + " ns");
}

// A rank that goes to sleep just when a peer announces itself must be woken, as its limit is far
// away.
void nobody_sleeps_through_an_announcement(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  std::mt19937 draw(static_cast<unsigned>(group->rank()));
  float sum = 0;
  const NodeCall call = node_call({.count = 1}, kInPlace, &sum);
  std::uint64_t longest = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    NodeExecution execution(*group);
    for (auto pause = draw() % 400; pause > 0; --pause) sum = static_cast<float>(pause);
    if ((turn + group->rank()) % 2 == 0) {
      group->run(call);
      continue;
    }
    execution.start(call);
    while (!execution.advance()) {
      const std::uint64_t begin = now_ns();
      Sleep::until(execution.awaited(), 30'000'000'000);
      longest = std::max(longest, now_ns() - begin);
    }
  }
  expect(longest < 25'000'000'000, "a sleeper was not woken");
}

// A thread that waits for several groups sleeps for all of them at once.
void a_sleeper_for_several_words_is_woken_by_each(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  const auto other = make_group(bootstrap, small_paths());
  std::atomic<std::uint32_t> wake{0};
  for (int turn = 0; turn < 40; ++turn) {
    NodeGroup& late = turn % 2 == 0 ? *group : *other;
    NodeGroup& first = turn % 2 == 0 ? *other : *group;
    float x = 1, y = 1;
    const NodeCall one = node_call({.count = 1}, kInPlace, &x);
    const NodeCall two = node_call({.count = 1}, kInPlace, &y);
    if (group->rank() != 0) {
      usleep(2000);
      first.run(two);
      usleep(2000);
      late.run(one);
      continue;
    }
    NodeExecution waits(late), goes(first);
    waits.start(one);
    goes.start(two);
    bool done[2] = {waits.advance(), goes.advance()};
    const auto start = std::chrono::steady_clock::now();
    while (!done[0] || !done[1]) {
      std::vector<Awaited> awaited;
      for (int i = 0; i < 2; ++i) {
        NodeExecution& one = i == 0 ? waits : goes;
        if (done[i]) continue;
        awaited.push_back(one.awaited());
      }
      Sleep::until_any(awaited, &wake, 0, 20'000'000'000);
      if (!done[0]) done[0] = waits.advance();
      if (!done[1]) done[1] = goes.advance();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    expect(took.count() < 10, "a sleeper was not woken: " + std::to_string(took.count()) + " s");
  }
  if (group->rank() != 0) return;
  std::thread waker([&] {
    usleep(20'000);
    wake = 1;
    Sleep::wake(wake);
  });
  const std::atomic<std::uint64_t> never{0};
  Bell bell;
  const Awaited awaited{&never, 1, &bell};
  const auto start = std::chrono::steady_clock::now();
  while (wake == 0) Sleep::until_any({&awaited, 1}, &wake, 0, 20'000'000'000);
  waker.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  expect(took.count() < 10, "the wake word woke nobody: " + std::to_string(took.count()) + " s");
}

int run_all(const std::string& part) {
  Report report(part);
  if (part == "--two-billion") {
    Report report_of_one("");
    report_of_one("after_two_billion_allreduces_the_next_large_one_is_right", [] {
      constexpr unsigned kMostSeconds = 4 * 3600;
      return run_ranks(Ranks::kProcesses, 2,
                       after_two_billion_allreduces_the_next_large_one_is_right, kMostSeconds);
    });
    return report_of_one.finish();
  }
  for (const Ranks kind : {Ranks::kProcesses, Ranks::kThreads}) {
    const auto on = on_ranks(report, kind);
    // Threads wait and wake as processes do. Fewer sizes suffice, as ThreadSanitizer is slow.
    const bool threads = kind == Ranks::kThreads;
    for (const int size : threads ? std::vector{1, 2, 3} : std::vector{1, 2, 3, 5, 8}) {
      on(size, "allreduce_equals_the_fold_in_rank_order", allreduce_equals_the_fold_in_rank_order);
      on(size, "the_other_collectives_move_the_right_blocks",
         the_other_collectives_move_the_right_blocks);
      on(size, "alltoall_moves_what_each_rank_has_for_each",
         alltoall_moves_what_each_rank_has_for_each);
      if (size > 1) {
        on(size, "uneven_alltoalls_learn_the_faster_way", uneven_alltoalls_learn_the_faster_way);
      }
      on(size, "parts_of_a_vector_are_combined_and_shared",
         parts_of_a_vector_are_combined_and_shared);
      on(size, "mixed_operations_back_to_back", mixed_operations_back_to_back);
      for (const Kind of : kReadKinds) {
        on(size, "long_operations_read_peers_memory, " + describe(make_signature(of, {}, {}, 1)),
           [of](BoardBootstrap& bootstrap) { long_operations_read_peers_memory(bootstrap, of); });
      }
      on(size, "default_sizes_give_exact_sums", default_sizes_give_exact_sums);
      on(size, "slots_are_written_in_both_ways", slots_are_written_in_both_ways);
      on(size, "arrivals_are_those_of_the_same_operation",
         arrivals_are_those_of_the_same_operation);
    }
    for (const int size : {2, 3, 5}) {
      on(size, "disagreement_is_a_usage_error_on_every_rank",
         disagreement_is_a_usage_error_on_every_rank);
      on(size, "an_aborted_call_is_explained_to_the_peers",
         an_aborted_call_is_explained_to_the_peers);
    }
    for (const int size : {2, 3}) {
      for (const unsigned bits : {0U, 31U, 32U}) {
        if (threads && bits != (size == 2 ? 0U : 32U)) continue;
        const std::uint64_t first = (std::uint64_t{1} << bits) - (bits == 0 ? 0 : 3);
        on(size, "old_steps_count_for_no_later_operation, from " + std::to_string(first),
           [first](BoardBootstrap& bootstrap) {
             old_steps_count_for_no_later_operation(bootstrap, first);
           });
      }
    }
    for (const int size : {2, 3}) {
      for (const Kind of : kReadKinds) {
        if (is_slow(size) && (size > 2 || of != Kind::kAllreduce)) continue;
        on(size, "long_operations_read_mapped_memory, " + describe(make_signature(of, {}, {}, 1)),
           [of](BoardBootstrap& bootstrap) { long_operations_read_mapped_memory(bootstrap, of); });
      }
    }
    for (const int size : {2, 4}) on(size, "long_waits_are_timed", long_waits_are_timed);
    on(2, "nobody_sleeps_through_an_announcement", nobody_sleeps_through_an_announcement);
    for (const int size : {2, 3}) {
      on(size, "a_sleeper_for_several_words_is_woken_by_each",
         a_sleeper_for_several_words_is_woken_by_each);
    }
    on(3, "a_rank_that_has_finished_is_not_missed", a_rank_that_has_finished_is_not_missed);
    on(3, "memory_that_is_lacking_is_refused_on_every_rank",
       memory_that_is_lacking_is_refused_on_every_rank);
  }
  on_ranks(report, Ranks::kProcesses)(64, "allreduce_of_many_more_ranks_than_cores",
                                      many_more_ranks_than_cores);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: node_test [part of a test's name | --two-billion]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
