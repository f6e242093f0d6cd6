// The shared-memory collectives of one host: results, agreement, failures.
//
// Expected results come from folding all ranks' inputs in order of rank in this rank alone; they
// must match bit for bit.

#include <sched.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <random>

#include "node/shrinking.h"
#include "node_ranks.h"

namespace gradred::testing {
namespace {

using Bytes = std::vector<std::byte>;

// Small limits, so that counts of a few thousand elements take every path and many chunks.
NodeOptions small_paths() {
  NodeOptions options;
  options.slot_bytes = 4096;
  options.chunk_bytes = 8192;
  options.piece_bytes = 4096;
  options.one_shot_bytes = 4096;
  options.exchange_bytes = 40000;
  options.streaming_bytes = 60000;
  return options;
}

struct Call {
  Kind kind = Kind::kAllreduce;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  std::size_t count = 0;  // of one rank's block
  bool in_place = false;
  int root = 0;
  bool in_steps = false;  // where that is possible; may differ between ranks
};

// Small whole numbers: valid in every type, and cheap to make.
Bytes input_of_rank(const Call& call, std::size_t elements, int rank, unsigned seed) {
  Bytes data(elements * size_of(call.dtype));
  const auto whole = [&](std::size_t i) {
    return static_cast<int>((i * 31 + static_cast<std::size_t>(rank) * 17 + seed) % 13);
  };
  const auto fill = [&]<class T>(T) {
    for (std::size_t i = 0; i < data.size() / sizeof(T); ++i) {
      const T value = static_cast<T>(whole(i));
      std::memcpy(data.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  switch (call.dtype) {
    case DType::kFloat32:
    case DType::kComplex64:
      fill(float{});
      break;
    case DType::kFloat64:
    case DType::kComplex128:
      fill(double{});
      break;
    case DType::kBool:
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = std::byte(whole(i) % 2);
      break;
    default:  // integers in their lowest byte; 16-bit floats as some small finite number
      for (std::size_t i = 0; i < elements; ++i) {
        data[i * size_of(call.dtype)] = std::byte(static_cast<unsigned char>(whole(i)));
      }
  }
  return data;
}

Bytes folded(const Call& call, std::size_t elements, int size, unsigned seed) {
  std::vector<Bytes> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(input_of_rank(call, elements, rank, seed));
    pointers.push_back(inputs.back().data());
  }
  Bytes result(elements * size_of(call.dtype));
  if (elements > 0) {
    find_reduction(call.op, call.dtype)
        ->many(result.data(), pointers.data(), pointers.size(), elements);
  }
  return result;
}

std::string text_of(const Call& call, int size) {
  return describe(make_signature(call.kind, call.op, call.dtype, call.count)) +
         (call.in_place ? ", in place" : "") + ", p=" + std::to_string(size);
}

// What a call gets and what it must leave in `recv`.
struct Case {
  Bytes send, recv, expected;
};

Case make_case(const Call& call, int rank, int size, unsigned seed) {
  const auto ranks = static_cast<std::size_t>(size), me = static_cast<std::size_t>(rank);
  const std::size_t all = call.count * ranks, element = size_of(call.dtype);
  const std::size_t block = call.count * element;
  Case c;
  if (call.kind == Kind::kAllreduce) {
    c.send = input_of_rank(call, call.count, rank, seed);
    c.expected = folded(call, call.count, size, seed);
    c.recv = call.in_place ? c.send : Bytes(block, std::byte{0xA5});
  } else if (call.kind == Kind::kReduceScatterBlock) {
    c.send = input_of_rank(call, all, rank, seed);
    const Bytes sums = folded(call, all, size, seed);
    const auto mine = sums.begin() + static_cast<std::ptrdiff_t>(me * block);
    c.expected.assign(mine, mine + static_cast<std::ptrdiff_t>(block));
    c.recv = call.in_place ? c.send : Bytes(block, std::byte{0xA5});
  } else if (call.kind == Kind::kAllgather) {
    c.send = input_of_rank(call, call.count, rank, seed);
    c.recv.assign(all * element, std::byte{0xA5});
    for (int peer = 0; peer < size; ++peer) {
      const Bytes theirs = input_of_rank(call, call.count, peer, seed);
      c.expected.insert(c.expected.end(), theirs.begin(), theirs.end());
    }
    if (call.in_place)
      std::copy(c.send.begin(), c.send.end(),
                c.recv.begin() + static_cast<std::ptrdiff_t>(me * block));
  } else {
    c.expected = input_of_rank(call, call.count, call.root, seed);
    c.recv = rank == call.root ? c.expected : Bytes(block, std::byte{0xA5});
  }
  return c;
}

// As allreduce() does it, but never waiting inside the group.
void allreduce_in_steps(NodeGroup& group, const AllreduceArgs& args) {
  while (!group.start_allreduce(args)) sched_yield();
  while (!group.finish_allreduce(args)) sched_yield();
}

void perform(NodeGroup& group, const Call& call, const void* send, void* recv,
             Poll* poll = nullptr) {
  const auto signature = make_signature(call.kind, call.op, call.dtype, call.count,
                                        static_cast<std::uint64_t>(call.root));
  const AllreduceArgs args{
      send,      recv, call.count, size_of(call.dtype), find_reduction(call.op, call.dtype),
      signature, poll};
  switch (call.kind) {
    case Kind::kAllreduce:
      return call.in_steps && group.starts(args.count * args.element)
                 ? allreduce_in_steps(group, args)
                 : group.allreduce(args);
    case Kind::kReduceScatterBlock:
      return group.reduce_scatter_block(args);
    case Kind::kAllgather:
      return group.allgather(args);
    default:
      return group.bcast({recv, call.count * size_of(call.dtype), call.root, signature, poll});
  }
}

// One call on this rank, its result checked, and that nothing around it was touched.
void run_call(NodeGroup& group, const Call& call, unsigned seed) {
  const std::size_t fence = 64;
  const Case c = make_case(call, group.rank(), group.size(), seed);
  const Bytes untouched = c.send;
  Bytes fenced(c.recv.size() + 2 * fence, std::byte{0x5A});
  std::copy(c.recv.begin(), c.recv.end(), fenced.begin() + fence);
  perform(group, call, call.in_place ? nullptr : c.send.data(), fenced.data() + fence);

  const std::string what = text_of(call, group.size());
  expect(std::equal(c.expected.begin(), c.expected.end(), fenced.begin() + fence),
         "wrong result: " + what);
  expect(c.send == untouched, "the input has changed: " + what);
  for (std::size_t i = 0; i < fence; ++i) {
    expect(fenced[i] == std::byte{0x5A} && fenced[fenced.size() - 1 - i] == std::byte{0x5A},
           "written outside of the result: " + what);
  }
}

template <class Function>
std::string message_of_usage_error(Function&& function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.what();
  }
  throw Failed("no UsageError was thrown");
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Report {
 public:
  explicit Report(std::string part) : part_(std::move(part)) {}
  // Runs the test unless its name lacks the part that was asked for.
  void operator()(const std::string& name, const std::function<std::string()>& test) {
    if (!contains(name, part_)) return;
    const std::string failures = test();
    ++(failures.empty() ? passed_ : failed_);
    if (!failures.empty()) std::printf("FAILED %s\n%s", name.c_str(), failures.c_str());
  }
  int finish() const {
    std::printf("%d passed, %d failed\n", passed_, failed_);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  std::string part_;
  int passed_ = 0, failed_ = 0;
};

const char* name_of(Ranks kind) { return kind == Ranks::kThreads ? "threads" : "processes"; }

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

void the_other_collectives_move_the_right_blocks(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  unsigned seed = 0;
  for (const Kind kind : {Kind::kReduceScatterBlock, Kind::kAllgather, Kind::kBcast}) {
    for (const std::size_t count : {0U, 1U, 2U, 13U, 257U, 2048U, 12011U}) {
      for (const bool in_place : {false, true}) {
        const int root = static_cast<int>(count) % group->size();
        run_call(*group, {.kind = kind, .count = count, .in_place = in_place, .root = root},
                 ++seed);
      }
    }
  }
}

// Consecutive operations of any kind and size must not disturb each other, also where the 32 bits
// of the operation number wrap around.
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
    call.in_steps = own() % 2 == 0;
    if (own() % 8 == 0) usleep(static_cast<useconds_t>(own() % 200));
    run_call(*group, call, i);
  }
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
  other_root.root = 1;  // travels as Signature::detail
  const std::pair<Call, Call> pairs[] = {{usual, large},      {large, usual},
                                         {usual, other_op},   {usual, other_type},
                                         {usual, other_kind}, {usual, other_root}};
  unsigned seed = 0;
  for (const auto& [mine, theirs] : pairs) {
    Call call = odd_one ? theirs : mine;
    call.in_steps = seed % 4 == 0;
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
    const Call call{.count = i % 3 == 0 ? 9000U : 4U, .in_steps = i % 2 == 0};
    if (group->rank() == culprit) {
      group->abort("the array is read-only");
    } else {
      Bytes data(1 << 16);
      const std::string message =
          message_of_usage_error([&] { perform(*group, call, nullptr, data.data()); });
      expect(contains(message, "rank " + std::to_string(culprit)) &&
                 contains(message, "the array is read-only"),
             "the message does not explain: " + message);
    }
    if (i % 4 == 3) run_call(*group, call, i);
  }
}

// A rank may end right after its last operation, here an aborted one, while others still wait in it
// for a third.
void a_rank_that_has_finished_is_not_missed(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  if (group->rank() == 1) return group->abort("no such type");
  if (group->rank() == 2) usleep(300'000);
  Bytes data(16);
  const auto message =
      message_of_usage_error([&] { perform(*group, {.count = 4}, nullptr, data.data()); });
  expect(contains(message, "no such type"), message);
}

// Loops over operations until one throws, and says what and after how long.
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

void a_killed_peer_is_lost_within_two_seconds(BoardBootstrap& bootstrap, std::size_t count) {
  const auto group = make_group(bootstrap, small_paths());
  if (group->rank() == 1) {
    const pid_t me = getpid();
    std::thread([me] {
      usleep(30'000);
      kill(me, SIGKILL);
    }).detach();
  }
  double seconds = 0;
  const std::string message = error_of_endless_calls<PeerLost>(*group, {.count = count}, seconds);
  expect(contains(message, "rank 1"), "the lost rank is not named: " + message);
  expect(seconds < 2, "it took " + std::to_string(seconds) + " s");
  double again = 0;
  error_of_endless_calls<PeerLost>(*group, {.count = 1}, again);  // a poisoned group stays so
}

void a_freed_group_is_reported_to_waiting_peers(BoardBootstrap& bootstrap) {
  auto group = make_group(bootstrap, small_paths());
  run_call(*group, {.count = 4}, 1);
  if (group->rank() == 0) return;
  double seconds = 0;
  const std::string message = error_of_endless_calls<PeerLost>(*group, {.count = 4}, seconds);
  expect(contains(message, "rank 0") && contains(message, "freed"), message);
}

struct Interrupted {};  // like a signal's exception: not a std::exception

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
    if (group->rank() == 0) {  // the others wait for rank 1, which does not come before it must
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
  expect(took.count() < 5, "leaving took " + std::to_string(took.count()) + " s");
}

// While a rank waits for long, its owner is called often enough for Ctrl-C within 0.1 s.
void poll_is_called_throughout_a_wait(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  ThrowingPoll counting([] {});
  Bytes data(16);
  if (group->rank() == 1) usleep(600'000);
  perform(*group, {.count = 4}, nullptr, data.data(), &counting);
  if (group->rank() == 0) {
    expect(counting.calls() >= 15,
           "poll was called " + std::to_string(counting.calls()) + " times");
  }
}

void memory_that_is_lacking_is_refused_on_every_rank(BoardBootstrap& bootstrap) {
  NodeOptions options;
  options.chunk_bytes = 1ULL << 50;
  std::string reason;
  expect(NodeGroup::create(bootstrap, options, reason) == nullptr, "a petabyte was granted");
  expect(contains(reason, "rank 0") && contains(reason, "memory"), "reason: " + reason);
  expect(NodeGroup::create(bootstrap, small_paths(), reason) != nullptr, "no group afterwards");
}

// As in a container of its own: what this rank finds under the leader's process number is not
// the memory that the leader means.
class ElsewhereBootstrap final : public Bootstrap {
 public:
  explicit ElsewhereBootstrap(BoardBootstrap& bootstrap) : bootstrap_(bootstrap) {}
  int rank() const override { return bootstrap_.rank(); }
  int size() const override { return bootstrap_.size(); }
  void barrier() override { bootstrap_.barrier(); }
  void allgather(const void* mine, std::size_t bytes, void* all) override {
    bootstrap_.allgather(mine, bytes, all);
    if (++calls_ == 1 && rank() == 2) *static_cast<std::uint64_t*>(all) ^= 1;  // the token
  }

 private:
  BoardBootstrap& bootstrap_;
  int calls_ = 0;
};

// One rank that cannot take part must keep all from taking part, and say why.
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

// The sum of 2^(rank in the first group) tells who takes part.
void expect_members(NodeGroup& group, std::size_t first_rank, const Members& members) {
  std::uint64_t sum = std::uint64_t{1} << first_rank, expected = 0;
  for (const std::size_t member : members) expected |= std::uint64_t{1} << member;
  group.allreduce({.recv = &sum,
                   .count = 1,
                   .element = sizeof sum,
                   .reduce = find_reduction(Op::kSum, DType::kUInt64),
                   .signature = make_signature(Kind::kAllreduce, Op::kSum, DType::kUInt64, 1)});
  expect(sum == expected, "the sum is that of all members and nobody else: " + std::to_string(sum));
}

// A rank that frees its group has left; threads can do that as well.
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

// Sound groups can be shrunk, again and again, and so can what comes out.
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

// What one rank's Poll throws ends the attempt for all; the next one succeeds.
void a_rank_that_gives_up_shrinking_takes_all_along(BoardBootstrap& bootstrap) {
  class Impatient final : public Poll {
   public:
    void poll() override { throw TimeoutError("patience is over"); }
  };
  const auto group = make_group(bootstrap, small_paths());
  const auto rank = static_cast<std::size_t>(bootstrap.rank());
  Members all;
  for (int i = 0; i < bootstrap.size(); ++i) all.push_back(static_cast<std::size_t>(i));
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

// Rank 1 is killed at some moment while all shrink: those that live end with the same members,
// after another attempt or another shrink.
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
  Members names;  // of the ranks of `from`, in the first group
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
    expect(entries("/proc/self/fd") == files, "a group keeps a file open");
  }
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

// Every third operation by its number, so that all ranks look at the same ones. Aborted and
// differing operations come between, after which places are used again too early if the rule at the
// top of group.h is broken.
void arrivals_are_those_of_the_same_operation(BoardBootstrap& bootstrap) {
  auto group = make_group(bootstrap, small_paths());
  const auto time_of = [](std::uint64_t operation, int rank) {
    return 1000 * operation + static_cast<std::uint64_t>(rank) + 1;
  };
  std::vector<float> data(3000, 1.0F);
  for (std::uint64_t operation = 1; operation <= 600; ++operation) {
    const int odd_one = static_cast<int>(operation) % group->size();
    const bool told = operation % 3 == 0;
    if (told) group->arrive(time_of(operation, group->rank()));
    if (operation % 7 == 0 && group->size() > 1 && odd_one == group->rank()) {
      group->abort("a test");
      continue;
    }
    const std::size_t count = operation % 5 == 0 ? 3000 : operation % 2 == 0 ? 500 : 5;
    const AllreduceArgs args{
        .recv = data.data(),
        .count = count,
        .element = sizeof(float),
        .reduce = find_reduction(Op::kMax, DType::kFloat32),
        .signature = make_signature(Kind::kAllreduce, Op::kMax, DType::kFloat32, count)};
    try {
      group->allreduce(args);
    } catch (const UsageError&) {
      continue;
    }
    for (int rank = 0; rank < group->size(); ++rank) {
      const std::uint64_t found = group->arrival_ns(rank);
      expect(found == (told ? time_of(operation, rank) : 0),
             "operation " + std::to_string(operation) + ": rank " + std::to_string(rank) +
                 " came at " + std::to_string(found));
    }
  }
}

void long_waits_are_timed(BoardBootstrap& bootstrap) {
  auto group = make_group(bootstrap, small_paths());
  std::atomic<std::uint64_t> sum{0};
  group->charge_long_waits(sum);
  const AllreduceArgs args{.signature =
                               make_signature(Kind::kAllreduce, Op::kSum, DType::kUInt8, 0)};
  group->allreduce(args);
  bootstrap.barrier();
  sum = 0;
  if (group->rank() == 0) usleep(30'000);
  group->allreduce(args);
  const std::uint64_t waited = sum;
  expect(group->rank() == 0 || waited >= 25'000'000, "waited " + std::to_string(waited) + " ns");
}

std::string processes_are_told_apart() {
  const ProcessId me = this_process();
  ProcessId earlier = me;
  --earlier.start_time;  // the same number, but another life
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

std::string processes_are_told_apart_without_descriptors() {
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
    const auto on = [&](int size, const char* name, const Body& body) {
      report(std::string(name) + " [" + name_of(kind) + ", p=" + std::to_string(size) + "]",
             [&] { return run_ranks(kind, size, body); });
    };
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      on(size, "allreduce_equals_the_fold_in_rank_order", allreduce_equals_the_fold_in_rank_order);
      on(size, "the_other_collectives_move_the_right_blocks",
         the_other_collectives_move_the_right_blocks);
      on(size, "mixed_operations_back_to_back", mixed_operations_back_to_back);
      on(size, "default_sizes_give_exact_sums", default_sizes_give_exact_sums);
      on(size, "arrivals_are_those_of_the_same_operation",
         arrivals_are_those_of_the_same_operation);
    }
    for (const int size : {2, 3, 5}) {
      on(size, "disagreement_is_a_usage_error_on_every_rank",
         disagreement_is_a_usage_error_on_every_rank);
      on(size, "an_aborted_call_is_explained_to_the_peers",
         an_aborted_call_is_explained_to_the_peers);
      on(size, "a_freed_group_is_reported_to_waiting_peers",
         a_freed_group_is_reported_to_waiting_peers);
    }
    for (const int size : {2, 4}) {
      on(size, "what_poll_throws_reaches_all_ranks", what_poll_throws_reaches_all_ranks);
      on(size, "poll_is_called_throughout_a_wait", poll_is_called_throughout_a_wait);
      on(size, "long_waits_are_timed", long_waits_are_timed);
      on(size, "sound_groups_shrink_to_all_ranks", sound_groups_shrink_to_all_ranks);
      on(size, "a_rank_that_gives_up_shrinking_takes_all_along",
         a_rank_that_gives_up_shrinking_takes_all_along);
    }
    for (const int size : {2, 3, 5}) {
      on(size, "those_that_are_left_make_a_group", those_that_are_left_make_a_group);
    }
    on(3, "a_rank_that_has_finished_is_not_missed", a_rank_that_has_finished_is_not_missed);
    on(3, "memory_that_is_lacking_is_refused_on_every_rank",
       memory_that_is_lacking_is_refused_on_every_rank);
  }
  const auto on_processes = [&](int size, const std::string& name, const Body& body) {
    report(name + " [processes, p=" + std::to_string(size) + "]",
           [&] { return run_ranks(Ranks::kProcesses, size, body); });
  };
  for (const std::size_t count : {2U, 1000U, 300'000U}) {
    for (const int size : {2, 3, 8}) {
      on_processes(size, "a_killed_peer_is_lost_within_two_seconds, count " + std::to_string(count),
                   [&](BoardBootstrap& bootstrap) {
                     a_killed_peer_is_lost_within_two_seconds(bootstrap, count);
                   });
    }
  }
  for (const unsigned seed : {1U, 5U, 12U, 23U, 31U, 40U}) {
    on_processes(4, "kills_while_shrinking_leave_those_that_live, seed " + std::to_string(seed),
                 [&](BoardBootstrap& bootstrap) {
                   kills_while_shrinking_leave_those_that_live(bootstrap, seed);
                 });
  }
  on_processes(64, "allreduce_of_many_more_ranks_than_cores", many_more_ranks_than_cores);
  on_processes(4, "a_rank_that_sees_other_memory_is_named_on_every_rank",
               a_rank_that_sees_other_memory_is_named_on_every_rank);
  on_processes(3, "nothing_is_left_behind", nothing_is_left_behind);
  report("ranks_spin_only_with_a_core_each", ranks_spin_only_with_a_core_each);
  report("processes_are_told_apart", processes_are_told_apart);
  report("processes_are_told_apart_without_descriptors",
         processes_are_told_apart_without_descriptors);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// node_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
