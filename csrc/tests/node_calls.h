// Calls on node groups in tests: inputs, expected results, checks and a report.
//
// Each rank computes the expected results itself, by combining all ranks' inputs in rank order. The
// results must match bit for bit.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "bytes.h"
#include "node/group/node_execution.h"
#include "node/memory/array_memory.h"
#include "node_ranks.h"

namespace gradred::testing {

// Small limits, so that a few thousand elements cover all data paths and many chunks.
inline NodeOptions small_paths() {
  NodeOptions options;
  options.slot_bytes = 4096;
  options.chunk_bytes = 8192;
  options.ring_bytes = 36 << 10;
  options.placed_bytes = 500;
  options.piece_bytes = 4096;
  options.one_shot_bytes = 4096;
  options.exchange_bytes = 40000;
  options.streaming_bytes = 60000;
  options.single_copy_bytes = 80000;
  options.block_bytes = 300000;
  return options;
}

// How a rank waits for a call:
// - kNone: the call itself blocks.
// - kBusy: the caller polls.
// - kAsleep: the caller sleeps.
// - kBegun: the caller first only begins the call, then polls.
// - kSeldom: the caller polls at long intervals, so that each wait takes a long time.
enum class InSteps : std::uint8_t { kNone, kBusy, kAsleep, kBegun, kSeldom };

struct Call {
  Kind kind = Kind::kAllreduce;
  Op op = Op::kSum;
  DType dtype = DType::kFloat32;
  std::size_t count = 0;  // elements of one rank's block
  bool in_place = false;
  int root = 0;
  InSteps steps = InSteps::kNone;  // may differ between ranks
  bool mapped = false;             // arrays in memory that peers may map; may differ between ranks
};

constexpr std::size_t kPeriod = 13;  // elements, after which inputs and results repeat

// Small integers. They are valid in every type and cheap to make.
inline Bytes input_of_rank(const Call& call, std::size_t elements, int rank, unsigned seed) {
  Bytes data(elements * size_of(call.dtype));
  std::size_t made = 0;  // bytes written
  const auto whole = [&](std::size_t i) {
    return static_cast<int>((i * 31 + static_cast<std::size_t>(rank) * 17 + seed) % kPeriod);
  };
  const auto fill = [&]<class T>(T) {
    for (std::size_t i = 0; i < kPeriod && made < data.size(); ++i, made += sizeof(T)) {
      const T value = static_cast<T>(whole(i));
      std::memcpy(data.data() + made, &value, sizeof(T));
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
      for (; made < std::min(kPeriod, data.size()); ++made) data[made] = std::byte(whole(made) % 2);
      break;
    default:  // integers in their lowest byte; a small finite 16-bit float
      for (std::size_t i = 0; i < std::min(kPeriod, elements); ++i, made += size_of(call.dtype)) {
        data[made] = std::byte(static_cast<unsigned char>(whole(i)));
      }
  }
  repeat(data, made);
  return data;
}

inline Bytes folded(const Call& call, std::size_t elements, int size, unsigned seed) {
  std::vector<Bytes> inputs;
  std::vector<const void*> pointers;
  const std::size_t first = std::min(kPeriod, elements);
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(input_of_rank(call, first, rank, seed));
    pointers.push_back(inputs.back().data());
  }
  Bytes result(elements * size_of(call.dtype));
  if (elements > 0) {
    find_reduction(call.op, call.dtype)
        ->many(result.data(), pointers.data(), pointers.size(), first);
    repeat(result, first * size_of(call.dtype));
  }
  return result;
}

// The same over some of the ranks, rounded after each step. There is at least one.
inline Bytes scanned(const Call& call, const RankRange& ranks, unsigned seed) {
  std::vector<Bytes> inputs;
  std::vector<const void*> pointers;
  for (int rank = ranks.first; rank < ranks.end; ++rank) {
    inputs.push_back(input_of_rank(call, call.count, rank, seed));
  }
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  const std::size_t element = size_of(call.dtype);
  Bytes result(call.count * element);
  fold(*find_reduction(call.op, call.dtype), element, result.data(), pointers, call.count);
  return result;
}

inline std::string text_of(const Call& call, int size) {
  return describe(make_signature(call.kind, call.op, call.dtype, call.count)) +
         (call.in_place ? ", in place" : "") + ", p=" + std::to_string(size);
}

// The input of a call, and the content of `recv` that it must produce.
struct Case {
  Bytes send, recv, expected;
};

inline Case make_case(const Call& call, int rank, int size, unsigned seed) {
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
    c.expected = Bytes(std::span(sums).subspan(me * block, block));
    c.recv = call.in_place ? c.send : Bytes(block, std::byte{0xA5});
  } else if (call.kind == Kind::kAllgather) {
    c.send = input_of_rank(call, call.count, rank, seed);
    c.recv = Bytes(all * element, std::byte{0xA5});
    c.expected = Bytes(all * element);
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      const Bytes theirs = input_of_rank(call, call.count, static_cast<int>(peer), seed);
      std::memcpy(c.expected.data() + peer * block, theirs.data(), block);
    }
    if (call.in_place) std::memcpy(c.recv.data() + me * block, c.send.data(), block);
  } else if (sums_differ(call.kind)) {
    const RankRange summed = reduced_ranks(call.kind, rank, size);
    c.send = input_of_rank(call, call.count, rank, seed);
    c.recv = call.in_place ? c.send : Bytes(block, std::byte{0xA5});
    c.expected = summed.count() > 0 ? scanned(call, summed, seed) : c.recv;
  } else if (call.kind == Kind::kGather) {
    c.send = input_of_rank(call, call.count, rank, seed);
    const std::size_t bytes = rank == call.root ? all * element : 0;
    c.recv = Bytes(bytes, std::byte{0xA5});
    c.expected = Bytes(bytes);
    for (std::size_t peer = 0; rank == call.root && peer < ranks; ++peer) {
      const Bytes theirs = input_of_rank(call, call.count, static_cast<int>(peer), seed);
      std::memcpy(c.expected.data() + peer * block, theirs.data(), block);
    }
  } else if (call.kind == Kind::kScatter) {
    const Bytes vector = input_of_rank(call, all, call.root, seed);
    if (rank == call.root) c.send = vector;
    c.recv = Bytes(block, std::byte{0xA5});
    c.expected = Bytes(std::span(vector).subspan(me * block, block));
  } else {
    c.expected = input_of_rank(call, call.count, call.root, seed);
    c.recv = rank == call.root ? c.expected : Bytes(block, std::byte{0xA5});
  }
  return c;
}

inline NodeCall node_call(const Call& call, const void* send, void* recv) {
  return {.kind = call.kind,
          .send = send,
          .recv = recv,
          .count = call.count,
          .element = size_of(call.dtype),
          .reduce = find_reduction(call.op, call.dtype),
          .root = call.root,
          .signature = make_signature(call.kind, call.op, call.dtype, call.count,
                                      static_cast<std::uint64_t>(call.root))};
}

// Runs a call in nonblocking steps. `way` says what happens between them.
inline void run_in_steps(NodeGroup& group, const NodeCall& call, InSteps way, Poll* poll) {
  NodeExecution execution(group);
  execution.start(call);
  if (way == InSteps::kBegun) execution.begin();
  while (!execution.advance()) {
    if (poll != nullptr) poll->poll();
    if (way == InSteps::kAsleep) {
      Sleep::until(execution.awaited(), 100'000'000);
    } else if (way == InSteps::kSeldom) {
      usleep(300);
    } else {
      sched_yield();
    }
  }
}

inline void perform(NodeGroup& group, const Call& call, const void* send, void* recv,
                    Poll* poll = nullptr) {
  const NodeCall made = node_call(call, send, recv);
  if (call.steps == InSteps::kNone) return group.run(made, poll);
  run_in_steps(group, made, call.steps, poll);
}

// Advances the state as if all ranks had done `count` operations whose data fit into the
// announcements. Collective.
struct ManyOperations {
  static void pass(NodeGroup& group, std::uint64_t count, BoardBootstrap& bootstrap) {
    bootstrap.barrier();  // all ranks have left the last operation
    group.operation_ += count;
    RankState& mine = group.part().state(static_cast<std::size_t>(group.rank()));
    const std::uint64_t last = group.operation_;
    mine.announcement[last & 1].head.store(last << 32);
    mine.announcement[~last & 1].head.store((last - 1) << 32);
    group.finish();
    bootstrap.barrier();
  }
};

// A buffer with a fence on each side, in memory that peers may map or in ordinary memory.
class Fenced {
 public:
  Fenced(const Bytes& content, bool mapped)
      : bytes_(mapped ? 0 : content.size() + 2 * kFence), content_(content.size()) {
    if (mapped) memory_.emplace(content.size() + 2 * kFence);
    std::memset(all(), 0x5A, content_ + 2 * kFence);
    std::memcpy(data(), content.data(), content_);
  }
  std::byte* data() { return all() + kFence; }
  std::span<const std::byte> content() { return {data(), content_}; }
  bool is_whole() {
    const auto is_fence = [](std::byte one) { return one == std::byte{0x5A}; };
    return std::all_of(all(), data(), is_fence) &&
           std::all_of(data() + content_, data() + content_ + kFence, is_fence);
  }

 private:
  static constexpr std::size_t kFence = 64;
  std::byte* all() { return memory_ ? memory_->data() : bytes_.data(); }

  Bytes bytes_;
  std::size_t content_;
  std::optional<ArrayMemory> memory_;
};

// Runs one call on this rank, and checks the result and the fences.
inline void run_call(NodeGroup& group, const Call& call, unsigned seed) {
  const Case c = make_case(call, group.rank(), group.size(), seed);
  Fenced send(c.send, call.mapped), recv(c.recv, call.mapped);
  perform(group, call, call.in_place ? kInPlace : send.data(), recv.data());

  const std::string what = text_of(call, group.size());
  const auto result = recv.content().first(c.expected.size());
  expect(alike(c.expected, result), "wrong result: " + what);
  expect(alike(c.send, send.content()), "the input has changed: " + what);
  expect(send.is_whole() && recv.is_whole(), "written outside of the result: " + what);
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

}  // namespace gradred::testing
