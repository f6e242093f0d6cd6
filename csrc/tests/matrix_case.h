// One case of the matrix: runs an algorithm on threads and compares with a plain loop.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "bytes.h"
#include "late_memory.h"
#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/partition.h"
#include "testing/on_threads.h"

namespace gradred {
namespace {

using testing::Bytes;

struct Combination {
  DType dtype;
  Op op;
};

// Integers with results that are exact in every order: sums stay below 64, products at most 2^8.
constexpr Combination kCombinations[] = {
    {DType::kFloat32, Op::kSum}, {DType::kInt32, Op::kProd},   {DType::kFloat64, Op::kMax},
    {DType::kUInt8, Op::kSum},   {DType::kFloat64, Op::kProd}, {DType::kInt32, Op::kMin},
};

// The ranks' buffers are in host memory, in device memory, or in device memory on every other rank.
enum class Where : std::uint8_t { kHost, kDevice, kMixed };

struct Case {
  const Algorithm* algorithm;
  Parameters parameters;
  int size;
  std::size_t count;
  std::size_t slices;
  Protocol protocol;
  Combination types;
  bool in_place;
  Where where = Where::kHost;
  bool staged = false;
  std::optional<FaultSpec> fault{};
  bool traced = false;
};

std::string describe(const Case& c) {
  return std::string(schedules_name(c.algorithm->collective)) + " " +
         std::string(c.algorithm->name) + " p=" + std::to_string(c.size) +
         " count=" + std::to_string(c.count) + " slices=" + std::to_string(c.slices) +
         " root=" + std::to_string(c.parameters.root) +
         " local=" + std::to_string(c.parameters.local) + " k=" + std::to_string(c.parameters.k) +
         (c.protocol == Protocol::kRendezvous ? " rendezvous " : " eager ") +
         std::string(name_of(c.types.dtype)) + " " + std::string(name_of(c.types.op)) +
         (c.in_place ? "" : " from its input") +
         (c.where == Where::kHost    ? ""
          : c.where == Where::kMixed ? " mixed"
                                     : " on a device") +
         (c.staged ? " staged" : "") + (c.fault ? " delayed" : "") + (c.traced ? " traced" : "");
}

// Elements are converted from and to double, which represents all values used here.
template <class T>
void put(std::byte* data, std::size_t index, double value) {
  const T element = static_cast<T>(value);
  std::memcpy(data + index * sizeof(T), &element, sizeof(T));
}

template <class T>
double get(const std::byte* data, std::size_t index) {
  T element;
  std::memcpy(&element, data + index * sizeof(T), sizeof(T));
  return static_cast<double>(element);
}

struct Access {
  void (*put)(std::byte* data, std::size_t index, double value);
  double (*get)(const std::byte* data, std::size_t index);
};

Access access(DType dtype) {
  if (dtype == DType::kFloat32) return {put<float>, get<float>};
  if (dtype == DType::kFloat64) return {put<double>, get<double>};
  if (dtype == DType::kInt32) return {put<std::int32_t>, get<std::int32_t>};
  return {put<std::uint8_t>, get<std::uint8_t>};
}

// The values repeat after this number of elements.
constexpr std::size_t kPeriod = 88;

double input_of(const Case& c, int rank, std::size_t index) {
  const std::size_t mixed = index * 7 + static_cast<std::size_t>(rank) * 5 + index / 11;
  return static_cast<double>(c.types.op == Op::kProd ? 1 + mixed % 2 : mixed % 8);
}

double combine(Op op, double a, double b) {
  if (op == Op::kSum) return a + b;
  if (op == Op::kProd) return a * b;
  return op == Op::kMin ? std::min(a, b) : std::max(a, b);
}

double reduction(const Case& c, const RankRange& ranks, std::size_t index) {
  double result = input_of(c, ranks.first, index);
  for (int rank = ranks.first + 1; rank < ranks.end; ++rank) {
    result = combine(c.types.op, result, input_of(c, rank, index));
  }
  return result;
}

// The rank that owns each element as defined in schedule.h, separately in each slice.
std::vector<int> owners(const Case& c, std::uint32_t chunks) {
  std::vector<int> result(c.count);
  const Partition parts{c.count, c.slices};
  for (std::size_t slice = 0; slice < c.slices; ++slice) {
    const Partition partition{parts.length(slice), chunks};
    for (int rank = 0; rank < c.size; ++rank) {
      const std::size_t each = chunks / static_cast<std::size_t>(c.size);
      const std::size_t first = static_cast<std::size_t>(rank) * each;
      const std::size_t begin = parts.begin(slice) + partition.begin(first);
      std::fill_n(result.begin() + static_cast<std::ptrdiff_t>(begin),
                  partition.length(first, each), rank);
    }
  }
  return result;
}

// A vector with `value(index)` at each index.
template <class Value>
Bytes filled(const Case& c, Value value) {
  // If the ranks give blocks, the values also depend on the owner, so they do not repeat.
  const bool owned = info_of(c.algorithm->collective).input == Part::kOwnBlock;
  const std::size_t own = owned ? c.count : std::min(c.count, kPeriod);
  const Access elements = access(c.types.dtype);
  Bytes data(c.count * size_of(c.types.dtype));
  for (std::size_t i = 0; i < own; ++i) elements.put(data.data(), i, value(i));
  repeat(data, own * size_of(c.types.dtype));
  return data;
}

// State of one case: a schedule, an input and a work buffer for each rank. Buffers without a
// defined content are filled with 99.
struct Setting {
  explicit Setting(const Case& c) {
    const Kind collective = c.algorithm->collective;
    for (int rank = 0; rank < c.size; ++rank) {
      Schedule made = make_schedule(collective, c.algorithm->name, rank, c.size, c.parameters);
      schedules.push_back(c.in_place ? std::move(made) : from_input(std::move(made)));
    }
    if (has_blocks(collective)) owner = owners(c, schedules[0].chunks);
    for (int rank = 0; rank < c.size; ++rank) {
      inputs.push_back(filled(c, [&](std::size_t i) {
        return has(c, info_of(collective).input, rank, i) ? input_of(c, rank, i) : 99;
      }));
      work.push_back(c.in_place ? inputs.back() : filled(c, [](std::size_t) { return 99; }));
    }
  }

  // Whether an element belongs to the part that a rank gives or gets.
  bool has(const Case& c, Part part, int rank, std::size_t i) const {
    if (part == Part::kOwnBlock) return owner[i] == rank;
    return counts_of(part, c.algorithm->collective, {rank, c.size, c.parameters.root}) > 0;
  }

  std::vector<Schedule> schedules;
  std::vector<Bytes> inputs, work;
  std::vector<int> owner;  // owner of each element; if there are blocks
};

// The value of an element of a rank's result.
double expected(const Case& c, const Setting& setting, int rank, std::size_t index) {
  const Kind kind = c.algorithm->collective;
  if (reduces(kind)) return reduction(c, reduced_ranks(kind, rank, c.size), index);
  const bool owned = info_of(kind).input == Part::kOwnBlock;
  return input_of(c, owned ? setting.owner[index] : c.parameters.root, index);
}

// Returns an empty string, or the first difference.
std::string compare(const Case& c, const Setting& setting) {
  const KindInfo& kind = info_of(c.algorithm->collective);
  const bool same_on_all = kind.reduced == Reduced::kNone || kind.reduced == Reduced::kAll;
  Bytes all;
  for (int rank = 0; rank < c.size; ++rank) {
    const Bytes& data = setting.work[static_cast<std::size_t>(rank)];
    if (rank == 0 || !same_on_all) {
      all = filled(c, [&](std::size_t i) { return expected(c, setting, rank, i); });
    }
    if (data == all) continue;  // the fast case
    for (std::size_t i = 0; i < c.count; ++i) {
      if (!setting.has(c, kind.result, rank, i)) continue;
      const double wanted = access(c.types.dtype).get(all.data(), i);
      const double found = access(c.types.dtype).get(data.data(), i);
      if (found != wanted) {
        return "rank " + std::to_string(rank) + " element " + std::to_string(i) + " is " +
               std::to_string(found) + ", not " + std::to_string(wanted);
      }
    }
  }
  return {};
}

// Large vectors test overlap in time. In the small sweep, one mode of execution suffices for them.
bool is_small(const Case& c) {
  return c.count < 10000 || (c.slices > 1 && c.protocol == Protocol::kRendezvous);
}

// A rank's buffers in the memory of the case. A stream fills them, and the rank has to wait for it.
class Placed {
 public:
  Placed(Memory memory, Bytes& work, Bytes& input)
      : memory_(memory),
        stream_(memory),
        host_{&work, &input},
        own_{Allocation(memory, work.size() + 1), Allocation(memory, input.size() + 1)} {
    for (std::size_t i = 0; i < 2; ++i) {
      stream_.copy(own_[i].data(), host_[i]->data(), host_[i]->size());
    }
  }

  Buffer work() const { return {own_[0].data(), host_[0]->size(), memory_}; }
  const void* input() const { return own_[1].data(); }  // an empty one has an address as well
  Stream& filled() { return stream_; }
  void take_back() {
    for (std::size_t i = 0; i < 2; ++i) {
      stream_.copy(host_[i]->data(), own_[i].data(), host_[i]->size());
    }
    check(stream_.finish(), "the device has failed");
  }

 private:
  const Memory memory_;
  Stream stream_;
  Bytes* const host_[2];
  Allocation own_[2];
};

// Returns an empty string or an error. `touched`: the ranks treat device memory as host memory.
std::string run(const Case& c, testing::LateMemory& device, bool touched = false) {
  try {
    Setting setting(c);
    const std::vector<Bytes> inputs = setting.inputs;
    std::deque<Placed> placed;
    ThreadsRun run;
    for (int rank = 0; rank < c.size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const bool away = c.where == Where::kDevice || (c.where == Where::kMixed && rank % 2 == 0);
      Placed& one =
          placed.emplace_back(away ? Memory(device) : Memory(), setting.work[r], setting.inputs[r]);
      run.schedules.push_back(&setting.schedules[r]);
      run.buffers.push_back(one.work());
      if (touched) run.buffers.back().memory = Memory();
      if (!c.in_place) run.inputs.push_back(one.input());
      run.before.push_back(&one.filled());
    }
    run.dtype = c.types.dtype;
    run.op = c.types.op;
    run.slices = c.slices;
    run.protocol = c.protocol;
    run.staged = c.staged;
    run.fault = c.fault;
    if (c.traced) run.trace = "/dev/null";
    run_on_threads(run);
    for (Placed& one : placed) one.take_back();
    return setting.inputs == inputs ? compare(c, setting) : "an input has been changed";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace
}  // namespace gradred
