// Every kind of call in every mode. The results are exact in any order of the sums.
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "bytes.h"
#include "families/memory/as_node_call.h"
#include "late_memory.h"
#include "program.h"
#include "runtime/knobs.h"

namespace gradred::testing {
namespace {

enum class Way { kBlocking, kStarted, kWaitOfMpi, kPersistent };
constexpr std::array kWays = {Way::kBlocking, Way::kStarted, Way::kWaitOfMpi, Way::kPersistent};
constexpr std::array<std::size_t, 5> kCounts = {0, 1, 13, 1009, 70'001};
constexpr std::array<std::size_t, 3> kFewCounts = {0, 13, 70'001};
constexpr std::size_t kPieceByPiece =
    700'001;  // large enough to be copied to and from devices in pieces

void start_and_wait(const Library& mpi, Communicator& comm, const Call& call) {
  PlainWait hook;
  const auto operation = comm.start(call);
  mpi::Handle request = operation->request();
  if (request == mpi::get().is.request_null) return wait_for(*operation, hook);
  mpi.call("MPI_Wait", &request, mpi::get().is.status_ignore);
}

void carry_out(const Library& mpi, Communicator& comm, Call call, Way way) {
  PlainWait hook;
  validate(call, comm.rank(), comm.size());
  if (way == Way::kBlocking) return comm.run(call, hook);
  call.mpi_request = way != Way::kStarted;
  if (way != Way::kPersistent) return start_and_wait(mpi, comm, call);
  call.persistent = true;
  comm.agree_on_init(call, hook);
  for (int time = 0; time < 2; ++time) {
    start_and_wait(mpi, comm, call);
    comm.run_startable(call, hook);
  }
}

// An element type of the core, and how small integers are written in it.
struct Type {
  DType dtype;
  void (*put)(std::byte* element, int value);
};
template <class Number>
void put(std::byte* element, int value) {
  const auto number = static_cast<Number>(value);
  std::memcpy(element, &number, sizeof number);
}
void put_bfloat16(std::byte* element, int value) {
  const auto number = static_cast<float>(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  const auto upper = static_cast<std::uint16_t>(bits >> 16);
  std::memcpy(element, &upper, sizeof upper);
}
constexpr std::array<Type, 6> kTypes = {{{DType::kFloat32, put<float>},
                                         {DType::kFloat64, put<double>},
                                         {DType::kInt32, put<std::int32_t>},
                                         {DType::kUInt8, put<std::uint8_t>},
                                         {DType::kInt64, put<std::int64_t>},
                                         {DType::kBFloat16, put_bfloat16}}};

int input(int rank, std::size_t place) { return static_cast<int>(place % 5) + rank % 3; }
int sum(int size, std::size_t place) {
  int total = 0;
  for (int rank = 0; rank < size; ++rank) total += input(rank, place);
  return total;
}
int largest(int size, std::size_t place) { return input(std::min(size - 1, 2), place); }

// The values repeat after this number of elements.
constexpr std::size_t kPeriod = 35;

template <class Value>
Bytes filled(const Type& type, std::size_t count, Value value) {
  const std::size_t bytes = size_of(type.dtype), first = std::min(count, kPeriod);
  Bytes data(count * bytes + 1);  // never empty; nothing writes the last byte
  for (std::size_t i = 0; i < first; ++i) type.put(data.data() + i * bytes, value(i));
  repeat(std::span(data).first(count * bytes), first * bytes);
  return data;
}

// Concatenates blocks with the values `value(rank, i)`.
template <class Value>
Bytes gathered(const Type& type, std::size_t count, int ranks, Value value) {
  const std::size_t bytes = count * size_of(type.dtype);
  Bytes data(bytes * static_cast<std::size_t>(ranks) + 1);
  for (int rank = 0; rank < ranks; ++rank) {
    const Bytes block = filled(type, count, [&](std::size_t i) { return value(rank, i); });
    std::memcpy(data.data() + static_cast<std::size_t>(rank) * bytes, block.data(), bytes);
  }
  return data;
}

// The memory in which this rank has its arrays.
struct Place {
  Memory input{}, result{};
};

// An array in some memory, filled from host memory.
class Array {
 public:
  Array(Memory memory, const Bytes& values)
      : memory_(memory), bytes_(values.size()), own_(memory, bytes_), stream_(memory) {
    stream_.copy(own_.data(), values.data(), bytes_);
    expect(stream_.finish(), "the device has failed");
  }
  std::byte* data() const { return own_.data(); }
  Memory memory() const { return memory_; }
  Bytes values() {
    Bytes found(bytes_);
    stream_.copy(found.data(), own_.data(), bytes_);
    expect(stream_.finish(), "the device has failed");
    return found;
  }

 private:
  Memory memory_;
  std::size_t bytes_;
  Allocation own_;
  Stream stream_;
};

// The order of a call on device memory. nullptr: all arrays are in host memory.
std::shared_ptr<const CallOrder> order_of(Memory input, Memory result) {
  if (input.is_host() && result.is_host()) return nullptr;
  return std::make_shared<const CallOrder>();
}

class Check {
 public:
  Check(const Library& mpi, Communicator& comm, const Type& type, Way way, std::size_t count,
        Place place = {})
      : mpi_(mpi),
        comm_(comm),
        type_(type),
        way_(way),
        count_(count),
        size_(comm.size()),
        place_(place) {}

  void all_kinds() {
    const auto ranks = static_cast<std::size_t>(size_);
    const auto mine = [this](std::size_t i) { return input(comm_.rank(), i); };
    const auto summed = [this](std::size_t i) { return sum(size_, i); };
    reduced("sum", Op::kSum, summed);
    reduced("max", Op::kMax, [this](std::size_t i) { return largest(size_, i); });
    made({.kind = Kind::kReduceScatterBlock}, "reduce_scatter_block",
         filled(type_, count_ * ranks, mine), filled(type_, count_, [this](std::size_t i) {
           return sum(size_, static_cast<std::size_t>(comm_.rank()) * count_ + i);
         }));
    made({.kind = Kind::kAllgather}, "allgather", filled(type_, count_, mine),
         gathered(type_, count_, size_, input));
    broadcast();
  }
  void scaled_and_in_place() {
    const auto ranks = static_cast<std::size_t>(size_);
    const auto rank = static_cast<std::size_t>(comm_.rank());
    const auto mine = [this](std::size_t i) { return 2 * input(comm_.rank(), i); };
    const auto summed = [this](std::size_t i) { return 2 * sum(size_, i); };
    made({.kind = Kind::kAllreduce, .op = Op::kPremul, .factor = 0.5}, "premul",
         filled(type_, count_, mine),
         filled(type_, count_, [this](std::size_t i) { return sum(size_, i); }));
    const auto alike = [](std::size_t i) { return static_cast<int>(i % 7); };
    made({.kind = Kind::kAllreduce, .op = Op::kAvg}, "avg", filled(type_, count_, alike),
         filled(type_, count_, alike));
    if (way_ == Way::kPersistent)
      return;  // a persistent call runs several times, which needs an unchanged input
    in_place({.kind = Kind::kAllreduce}, filled(type_, count_, mine), filled(type_, count_, summed),
             count_);
    in_place({.kind = Kind::kReduceScatterBlock}, filled(type_, count_ * ranks, mine),
             filled(type_, count_, [&](std::size_t i) { return summed(rank * count_ + i); }),
             count_);
    in_place({.kind = Kind::kAllgather}, filled(type_, count_ * ranks, mine),
             gathered(type_, count_, size_,
                      [this](int from, std::size_t i) {
                        return 2 * input(from, static_cast<std::size_t>(from) * count_ + i);
                      }),
             count_ * ranks);
  }

 private:
  template <class Expected>
  void reduced(const char* name, Op op, Expected expected) {
    const auto mine = [this](std::size_t i) { return input(comm_.rank(), i); };
    made({.kind = Kind::kAllreduce, .op = op}, name, filled(type_, count_, mine),
         filled(type_, count_, expected));
  }
  void broadcast() {
    const int root = size_ - 1;
    const auto value = [](std::size_t i) { return static_cast<int>(i % 7); };
    const auto nothing = [](std::size_t) { return 0; };
    const auto wanted = filled(type_, count_, value);
    Array data(place_.result, comm_.rank() == root ? wanted : filled(type_, count_, nothing));
    carry_out(mpi_, comm_,
              {.kind = Kind::kBcast,
               .out = {data.data(), data.memory()},
               .order = order_of(Memory(), data.memory()),
               .count = count_,
               .dtype = type_.dtype,
               .root = root},
              way_);
    expect(data.values() == wanted, "bcast has another result");
  }
  void in_place(Call call, const Bytes& send, const Bytes& wanted, std::size_t length) {
    Array data(place_.result, send);
    call.out = {data.data(), data.memory()};
    call.order = order_of(Memory(), data.memory());
    call.count = count_;
    call.dtype = type_.dtype;
    carry_out(mpi_, comm_, call, way_);
    const Bytes found = data.values();
    expect(std::memcmp(found.data(), wanted.data(), length * size_of(type_.dtype)) == 0,
           "in place: " + std::string(name_of(call.kind)) + " of " + std::to_string(count_) +
               " has another result");
  }
  void made(Call call, const char* name, const Bytes& send, const Bytes& wanted) {
    Array from(place_.input, send), to(place_.result, Bytes(wanted.size()));
    call.in = {from.data(), from.memory()};
    call.out = {to.data(), to.memory()};
    call.order = order_of(from.memory(), to.memory());
    call.count = count_;
    call.dtype = type_.dtype;
    carry_out(mpi_, comm_, call, way_);
    expect(from.values() == send, std::string(name) + " has changed its input");
    expect(to.values() == wanted, std::string(name) + " of " + std::to_string(count_) + " " +
                                      std::string(name_of(type_.dtype)) + " has another result");
  }

  const Library& mpi_;
  Communicator& comm_;
  const Type& type_;
  const Way way_;
  const std::size_t count_;
  const int size_;
  const Place place_;
};

// Returns the number of checks.
int check_communicator(const Library& mpi, mpi::Handle handle, bool shares_memory) {
  const auto comm = Communicator::of(handle);
  PlainWait hook;
  comm->prepare(hook);
  expect(comm->size() == 1 || comm->node_path().serves_all() == shares_memory,
         "whether ranks share memory: " + comm->place().why_no_memory);
  int checks = 0;
  for (const Type& type : kTypes) {
    for (const Way way : kWays) {
      for (const std::size_t count : kCounts) {
        Check(mpi, *comm, type, way, count).all_kinds();
        ++checks;
      }
    }
  }
  return checks;
}

// Sets the knob `shm` for communicators that are first used from now on.
void share_memory(bool on) {
  set_knob("shm", on ? "1" : "0", "shm");
  begin_communicator();
}

}  // namespace

void make_all_calls(const Library& mpi) {
  const mpi::Handle world = mpi::get().is.comm_world;
  int checks = check_communicator(mpi, world, true);
  share_memory(false);
  const mpi::Handle over_messages = mpi.duplicate(world);
  checks += check_communicator(mpi, over_messages, false);
  share_memory(true);
  for (int time = 0; time < 3; ++time) {
    const mpi::Handle copy = mpi.duplicate(world);
    Check(mpi, *Communicator::of(copy), kTypes[0], Way::kBlocking, 1009).all_kinds();
    mpi.free(copy);
  }
  mpi.free(over_messages);
  const auto comm = Communicator::of(world);
  std::printf("rank %d of %d: %d checks passed\n", comm->rank(), comm->size(), checks);
  std::fflush(stdout);
}

// Tests devices that only copy, and one that reduces, whose memory schedules read directly. Ranks
// differ in which buffers are on a device: peers need not know where a rank's arrays are.
void make_calls_on_devices(const Library& mpi) {
  // Never destroyed, like real devices: the last operations may release memory at the process's
  // end.
  LateMemory& copies = *new LateMemory({.reduces = false});
  LateMemory& reduces = *new LateMemory({.seed = 2});
  LateMemory& other = *new LateMemory({.reduces = false, .seed = 3});
  const Memory host, a(copies), b(reduces), c(other);
  const mpi::Handle world = mpi::get().is.comm_world;
  share_memory(false);
  const mpi::Handle over_messages = mpi.duplicate(world);
  PlainWait hook;
  Communicator::of(over_messages)->prepare(hook);
  share_memory(true);
  int checks = 0;
  for (const mpi::Handle handle : {world, over_messages}) {
    const auto comm = Communicator::of(handle);
    const bool odd = comm->rank() % 2 == 1;
    const std::vector<Place> places = {{a, a},
                                       {host, a},
                                       {a, host},
                                       {a, c},
                                       odd ? Place{} : Place{a, a},
                                       {b, b},
                                       odd ? Place{b, b} : Place{c, host}};
    for (std::size_t i = 0; i < places.size(); ++i) {
      const Place& place = places[i];
      for (const Way way : kWays) {
        if (handle != world && way != Way::kBlocking && way != Way::kPersistent) continue;
        for (const std::size_t count : kFewCounts) {
          Check check(mpi, *comm, kTypes[checks % 2 == 0 ? 0 : 2], way, count, place);
          check.all_kinds();
          check.scaled_and_in_place();
          ++checks;
        }
        // Only shared memory moves arrays in pieces. The memory of `b` is never free of
        // allocations.
        if (i >= 5 || handle != world) continue;
        if (way != Way::kBlocking && way != Way::kStarted) continue;
        Check check(mpi, *comm, kTypes[0], way, kPieceByPiece, place);
        check.all_kinds();
        check.scaled_and_in_place();
        ++checks;
      }
    }
  }
  mpi.free(over_messages);
  for (const LateMemory* device :
       {&copies, &other}) {  // another thread may still hold an operation
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (device->allocations() != 0 && std::chrono::steady_clock::now() < end) sched_yield();
    expect(device->allocations() == 0, "memory of a device was not given back");
  }
  const auto comm = Communicator::of(world);
  std::printf("rank %d of %d: %d checks passed\n", comm->rank(), comm->size(), checks);
  std::fflush(stdout);
}

}  // namespace gradred::testing
