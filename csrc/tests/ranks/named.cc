// Named operations on arrays in host and device memory. Each rank submits them in a different
// order. The results are exact in any order of the sums.
#include "named/named.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "late_memory.h"
#include "program.h"

namespace gradred::testing {
namespace {

using Numbers = std::vector<float>;

constexpr std::size_t kColumns = 3;  // of arrays with rows

Numbers numbers_of(int rank, std::size_t count) {
  Numbers made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<float>((i + 3 * rank) % 11);
  return made;
}

Numbers sum_of_all(int size, std::size_t count) {
  Numbers sum(count);
  for (int rank = 0; rank < size; ++rank) {
    const Numbers one = numbers_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += one[i];
  }
  return sum;
}

Numbers times(float factor, Numbers numbers) {
  for (float& one : numbers) one *= factor;
  return numbers;
}

Numbers part_of(const Numbers& numbers, std::size_t begin, std::size_t count) {
  const auto from = numbers.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(count)};
}

// Numbers in some memory. They can be copied out after the stream's work.
class NumbersThere {
 public:
  NumbersThere(Memory memory, const Numbers& values)
      : count_(values.size()), own_(memory, bytes() + 1), stream_(memory) {
    stream_.copy(own_.data(), values.data(), bytes());
    expect(stream_.finish(), "the device has failed");
  }
  std::byte* data() const { return own_.data(); }
  std::size_t bytes() const { return count_ * sizeof(float); }
  Numbers values() {
    Numbers found(count_);
    stream_.copy(found.data(), own_.data(), bytes());
    expect(stream_.finish(), "the device has failed");
    return found;
  }

 private:
  std::size_t count_;
  Allocation own_;
  Stream stream_;
};

// One operation: its submission and its expected result.
struct Case {
  std::string name;
  Submission what;
  Numbers input, expected;
  std::vector<std::int64_t> splits{};
  bool makes_memory = false;  // gradred allocates its result

  std::unique_ptr<NumbersThere> in{}, out{};
  std::shared_ptr<NamedOperation> operation{};
};

Case reduction(std::size_t count, int rank, int size, double before, double after) {
  Case one;
  one.what.kind = NamedKind::kAllreduce;
  one.what.prescale = before;
  one.what.postscale = after;
  one.input = numbers_of(rank, count);
  one.expected = times(static_cast<float>(before * after), sum_of_all(size, count));
  return one;
}

Case broadcast(std::size_t count, int rank, int size) {
  Case one;
  one.what.kind = NamedKind::kBroadcast;
  one.what.root = size - 1;
  one.input = numbers_of(rank, count);
  one.expected = numbers_of(size - 1, count);
  return one;
}

// `more`: each rank has one row more than the rank before it.
Case gathering(std::size_t rows, bool more, int rank, int size) {
  Case one;
  one.what.kind = NamedKind::kAllgather;
  for (int other = 0; other < size; ++other) {
    const std::size_t count = kColumns * (rows + (more ? static_cast<std::size_t>(other) : 0));
    const Numbers mine = numbers_of(other, count);
    one.expected.insert(one.expected.end(), mine.begin(), mine.end());
    if (other == rank) one.input = mine;
  }
  one.makes_memory = more;
  return one;
}

Case swap(std::size_t rows, int rank, int size) {
  Case one;
  one.what.kind = NamedKind::kAlltoall;
  const auto ranks = static_cast<std::size_t>(size), me = static_cast<std::size_t>(rank);
  one.input = numbers_of(rank, kColumns * rows * ranks);
  one.splits.assign(ranks, static_cast<std::int64_t>(rows));
  for (int other = 0; other < size; ++other) {
    const Numbers all = numbers_of(other, kColumns * rows * ranks);
    const Numbers mine = part_of(all, kColumns * rows * me, kColumns * rows);
    one.expected.insert(one.expected.end(), mine.begin(), mine.end());
  }
  return one;
}

Case scattering(std::size_t rows, double before, int rank, int size) {
  Case one;
  one.what.kind = NamedKind::kReduceScatter;
  one.what.prescale = before;
  one.input = numbers_of(rank, kColumns * rows);
  const auto ranks = static_cast<std::size_t>(size), me = static_cast<std::size_t>(rank);
  const std::size_t each = rows / ranks, more = rows % ranks;
  const std::size_t begin = me * each + std::min(me, more), mine = each + (me < more ? 1 : 0);
  const Numbers sums = times(static_cast<float>(before), sum_of_all(size, kColumns * rows));
  one.expected = part_of(sums, kColumns * begin, kColumns * mine);
  return one;
}

std::vector<Case> all_cases(int rank, int size) {
  std::vector<Case> made;
  for (const std::size_t count : {1U, 13U, 1009U, 70'001U, 300'007U}) {
    made.push_back(reduction(count, rank, size, 1, 1));
    made.push_back(reduction(count, rank, size, 0.5, 4));
    made.push_back(broadcast(count, rank, size));
  }
  for (const std::size_t rows : {1U, 40U, 30'001U}) {
    made.push_back(gathering(rows, false, rank, size));
    made.push_back(gathering(rows, true, rank, size));
    made.push_back(swap(rows, rank, size));
    const auto even = rows * static_cast<std::size_t>(size);
    made.push_back(scattering(even, 1, rank, size));
    made.push_back(scattering(even, 2, rank, size));
    made.push_back(scattering(even + 1, 1, rank, size));
  }
  return made;
}

void submit(NamedOperations& all, Case& one, Memory memory) {
  one.in = std::make_unique<NumbersThere>(memory, one.input);
  one.out = std::make_unique<NumbersThere>(memory, Numbers(one.expected.size(), -1));
  const bool has_rows =
      one.what.kind != NamedKind::kAllreduce && one.what.kind != NamedKind::kBroadcast;
  NamedArray array{.in = {one.in->data(), memory},
                   .out = {one.makes_memory ? nullptr : one.out->data(), memory},
                   .out_bytes = one.out->bytes(),
                   .dtype = DType::kFloat32,
                   .count = one.input.size()};
  array.rows = static_cast<std::int64_t>(one.input.size() / (has_rows ? kColumns : 1));
  if (!memory.is_host()) {
    array.on_device = true;
    array.after.device = memory.device();
    one.what.on_device = 1;
  }
  one.what.dtype = array.dtype;
  one.what.axes = 1;
  one.what.shape[0] = array.rows;
  one.what.parts = 1;
  one.what.arrays = 1;
  one.what.counts[0] = array.count;
  one.what.bytes = array.bytes();
  one.operation = all.submit(one.name, one.what, {array}, one.splits);
}

void expect_result(Case& one) {
  PlainWait hook;
  wait_for(*one.operation, hook);
  Numbers found(one.expected.size());
  if (one.operation->outputs.empty()) {
    found = one.out->values();
  } else {
    const NamedOutput& made = one.operation->outputs.front();
    expect(made.bytes == found.size() * sizeof(float), one.name + ": a result of another length");
    if (made.bytes != 0) std::memcpy(found.data(), made.memory.get(), made.bytes);
  }
  expect(found == one.expected, one.name + " has another result");
  expect(one.in->values() == one.input, one.name + " has changed its input");
}

// Submits in a different order on each rank. Returns the number of operations.
std::size_t run_all(NamedOperations& all, Memory memory, const std::string& prefix) {
  std::vector<Case> cases = all_cases(all.rank(), all.size());
  for (std::size_t i = 0; i < cases.size(); ++i) cases[i].name = prefix + std::to_string(i);
  std::vector<std::size_t> order(cases.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto turn =
      static_cast<std::ptrdiff_t>(static_cast<std::size_t>(all.rank()) * 7 % cases.size());
  std::rotate(order.begin(), order.begin() + turn, order.end());
  for (const std::size_t i : order) submit(all, cases[i], memory);
  for (Case& one : cases) expect_result(one);
  return cases.size();
}

}  // namespace

void make_named_operations(const Library& mpi) {
  LateMemory& copies = *new LateMemory({.reduces = false});
  LateMemory& reduces = *new LateMemory({.seed = 2});
  const mpi::Handle world = mpi::get().is.comm_world;
  const mpi::Handle own = mpi.duplicate(world);
  std::size_t checks = 0;
  {
    PlainWait hook;
    const auto all = NamedOperations::create(Communicator::of(own), std::uint64_t{4} << 20, hook);
    const std::vector<std::pair<std::string, Memory>> places = {
        {"host ", Memory()},
        {"device ", Memory(copies)},
        {"device that reduces ", Memory(reduces)}};
    for (int time = 0; time < 3; ++time) {
      for (const auto& [prefix, memory] : places) checks += run_all(*all, memory, prefix);
    }
    all->close();
  }
  mpi.free(own);
  expect(copies.operations() > 0 && reduces.operations() > 0, "no device has done anything");
  const auto comm = Communicator::of(world);
  std::printf("rank %d of %d: %zu checks passed\n", comm->rank(), comm->size(), checks);
  std::fflush(stdout);
}

}  // namespace gradred::testing
