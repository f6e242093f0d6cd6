// Calls over messages without MPI, in host memory and in memory that no host thread may access.
// They test the copies of input and result, the factor, and the average.
#include "families/messages/scheduled.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "expect.h"
#include "families/families.h"
#include "families/messages/family_schedule.h"
#include "late_memory.h"
#include "schedule/algorithms.h"
#include "testing/threads.h"

namespace gradred::testing {
namespace {

constexpr std::size_t kSize = 4, kCount = 37;  // ranks; elements of a block or of the vector

struct Case {
  const char* name;
  Kind kind;
  Op op;
  bool in_place;
  int root = 0;
};

constexpr Case kCases[] = {
    {"allreduce", Kind::kAllreduce, Op::kSum, false},
    {"allreduce in place", Kind::kAllreduce, Op::kSum, true},
    {"average", Kind::kAllreduce, Op::kAvg, false},
    {"premul", Kind::kAllreduce, Op::kPremul, false},
    {"premul in place", Kind::kAllreduce, Op::kPremul, true},
    {"reduce_scatter_block", Kind::kReduceScatterBlock, Op::kSum, false},
    {"reduce_scatter_block in place", Kind::kReduceScatterBlock, Op::kAvg, true},
    {"allgather", Kind::kAllgather, Op::kSum, false},
    {"allgather in place", Kind::kAllgather, Op::kSum, true},
    {"bcast", Kind::kBcast, Op::kSum, true},
    {"scan", Kind::kScan, Op::kSum, false},
    {"scan in place", Kind::kScan, Op::kAvg, true},
    {"premul of a scan", Kind::kScan, Op::kPremul, false},
    {"exscan", Kind::kExscan, Op::kAvg, false},
    {"exscan in place", Kind::kExscan, Op::kSum, true},
    {"gather", Kind::kGather, Op::kSum, false},
    {"scatter", Kind::kScatter, Op::kSum, false},
    {"gather to rank 3", Kind::kGather, Op::kSum, false, 3},
    {"scatter from rank 1", Kind::kScatter, Op::kSum, false, 1},
};

const char* algorithm_of(Kind kind) {
  if (sums_differ(kind)) return "pipelined";
  return has_algorithm(kind, "ring") ? "ring" : "binomial";
}

float input_of(std::size_t rank, std::size_t index) {
  return static_cast<float>(4 * ((index * 7 + rank * 5) % 8));
}

float expected(const Case& c, std::size_t rank, std::size_t index) {
  if (c.kind == Kind::kBcast) return input_of(0, index);
  if (info_of(c.kind).input == Part::kOwnBlock) return input_of(index / kCount, index % kCount);
  if (c.kind == Kind::kScatter) {
    return input_of(static_cast<std::size_t>(c.root), rank * kCount + index);
  }
  if (c.kind == Kind::kReduceScatterBlock) index += rank * kCount;
  float sum = 0;
  const RankRange ranks = reduced_ranks(c.kind, static_cast<int>(rank), static_cast<int>(kSize));
  for (int r = ranks.first; r < ranks.end; ++r) sum += input_of(static_cast<std::size_t>(r), index);
  if (c.op == Op::kAvg) return sum / static_cast<float>(ranks.count());
  return c.op == Op::kPremul ? sum * 0.5F : sum;
}

// One rank with its buffers in `memory`. A stream fills them, and the call has to wait for it.
class Rank {
 public:
  Rank(const Case& c, std::size_t rank, Transport& transport, Memory memory)
      : case_(c), rank_(rank), transport_(transport), memory_(memory), stream_(memory) {}

  std::string run() {
    const bool blocks = has_blocks(case_.kind);
    const std::size_t all = blocks ? kSize * kCount : kCount;
    std::vector<float> in(all, -1), out(all, -2);
    const bool gathers = info_of(case_.kind).input == Part::kOwnBlock;
    for (std::size_t i = 0; i < (gathers ? kCount : all); ++i) in[i] = input_of(rank_, i);
    const Allocation send(memory_, in.size() * 4), recv(memory_, out.size() * 4);
    if (case_.in_place) {
      std::memcpy(out.data() + (gathers ? rank_ * kCount : 0), in.data(),
                  (gathers ? kCount : all) * 4);
    }
    stream_.copy(send.data(), in.data(), in.size() * 4);
    stream_.copy(recv.data(), out.data(), out.size() * 4);
    carry_out(send.data(), recv.data(), blocks ? kSize * kCount : kCount);
    stream_.copy(out.data(), recv.data(), out.size() * 4);
    check(stream_.finish(), "the device has failed");
    return compare(out);
  }

 private:
  void carry_out(const std::byte* send, std::byte* recv, std::size_t work_count) {
    Call call{.kind = case_.kind,
              .in = {case_.in_place ? kInPlace : send, memory_},
              .out = {recv, memory_},
              .order = std::make_shared<const CallOrder>(
                  CallOrder{.before = {std::shared_ptr<Stream>(), &stream_}}),
              .count = kCount,
              .dtype = DType::kFloat32,
              .op = case_.op,
              .root = case_.root};
    call.factor = 0.5;
    const char* const algorithm = algorithm_of(case_.kind);
    BoundPlanKey key{case_.kind, algorithm,       nullptr,  work_count,
                     1,          DType::kFloat32, case_.op, !reads_callers_input(call),
                     memory_};
    auto schedule = std::make_shared<const Schedule>(
        make_schedule(case_.kind, algorithm, static_cast<int>(rank_), static_cast<int>(kSize),
                      Parameters{.root = case_.root}));
    ScheduledCall scheduled(call, static_cast<int>(rank_), static_cast<int>(kSize));
    scheduled.use(bind_plan(key, schedule, transport_));
    while (!scheduled.step()) std::this_thread::yield();
    const std::size_t reserved = scheduled.bound_plan().work.bytes();
    check(!has_root(case_.kind) || reserved == blocks_used() * kCount * 4,
          "the work buffer has room for other blocks than those that the rank uses");
  }

  // In a binomial gather or scatter: the blocks that this rank gives, gets and passes on, if they
  // lie in no buffer of the caller's.
  std::size_t blocks_used() const {
    const std::size_t place = (rank_ + kSize - static_cast<std::size_t>(case_.root)) % kSize;
    if (case_.kind == Kind::kBcast || (place == 0 && case_.kind == Kind::kGather)) return 0;
    if (place == 0) return 1;  // a root that scatters sends from its input
    const std::size_t blocks = std::min(place & (~place + 1), kSize - place);
    return rank_ + blocks > kSize ? kSize : blocks;  // blocks on both ends of the vector
  }

  std::string compare(const std::vector<float>& out) const {
    const int me = static_cast<int>(rank_), size = static_cast<int>(kSize);
    // The rest is undefined.
    const PlaceInCall place{.rank = me, .size = size, .root = case_.root};
    const std::size_t right = kCount * got_counts(case_.kind, place);
    for (std::size_t i = 0; i < right; ++i) {
      if (out[i] != expected(case_, rank_, i)) {
        return "element " + std::to_string(i) + " of rank " + std::to_string(rank_) + " is " +
               std::to_string(out[i]) + ", not " + std::to_string(expected(case_, rank_, i));
      }
    }
    return {};
  }

  const Case& case_;
  const std::size_t rank_;
  Transport& transport_;
  const Memory memory_;
  Stream stream_;
};

// Returns an empty string or an error. `away`: number of ranks with their buffers on the device.
std::string run(const Case& c, LateMemory& device, std::size_t away) {
  ThreadsWorld world(static_cast<int>(kSize), Protocol::kRendezvous);
  std::vector<std::string> troubles(kSize);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto transport = world.transport(static_cast<int>(rank));
        const Memory memory = rank < away ? Memory(device) : Memory();
        troubles[rank] = Rank(c, rank, *transport, memory).run();
      } catch (const std::exception& error) {
        troubles[rank] = error.what();
        world.poison(static_cast<int>(rank), error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& trouble : troubles) {
    if (!trouble.empty()) return trouble;
  }
  return {};
}

void calls_give_their_results_wherever_the_buffers_are() {
  LateMemory device;
  for (const Case& c : kCases) {
    for (const std::size_t away : {std::size_t{0}, kSize / 2, kSize}) {
      const std::string trouble = run(c, device, away);
      expect(trouble.empty(),
             std::string(c.name) + ", " + std::to_string(away) + " ranks on a device: " + trouble);
    }
  }
  expect(device.allocations() == 0, "something of the device was not given back");
}

void schedules_alone_read_memory_that_is_not_the_hosts() {
  LateMemory device, other;
  for (const Family* family : plan_families()) {
    const std::string name(family->name());
    const auto reads_in = [&](Memory input, Memory result) {
      Call call;
      call.in = {&call, input};
      call.out.memory = result;
      return !works_on_copies(family->access(call));
    };
    // Skips families that handle device memory themselves (MPI) or serve only device memory.
    if (family->medium() == "library" || family->medium() == "mpi") continue;
    const bool reads = reads_in(Memory(device), Memory(device));
    expect(reads == (family == &schedule_family()), "memory of a device and " + name);
    expect(reads_in(Memory(), Memory()), "host memory and " + name);
    for (const Memory input : {Memory(), Memory(other)}) {
      expect(!reads_in(input, Memory(device)), "two memories and " + name);
    }
  }
}

// Memory that was passed to a channel.
struct Given {
  std::byte* address;
  std::size_t bytes;

  bool overlaps(const std::vector<std::byte>& other) const {
    return address < other.data() + other.size() && other.data() < address + bytes;
  }
};

// Messages of the first round complete. Those of the second round never do and cannot be withdrawn,
// as when MPI is in the middle of a long message.
class StuckChannel final : public Channel {
 public:
  explicit StuckChannel(std::vector<Given>& stuck) : stuck_(stuck) {}
  void begin(std::uint32_t, const Signature&) override {}
  void send(int, const void* data, std::size_t bytes) override {
    recv(0, const_cast<void*>(data), bytes);
  }
  void recv(int, void* data, std::size_t bytes) override {
    posted_.push_back({static_cast<std::byte*>(data), bytes});
  }
  bool test() override {
    if (std::exchange(tested_, true)) return false;
    posted_.clear();
    return true;
  }
  bool abandon() noexcept override {
    stuck_.swap(posted_);
    return stuck_.empty();
  }

 private:
  std::vector<Given>& stuck_;
  std::vector<Given> posted_;
  bool tested_ = false;
};

class StuckTransport final : public Transport {
 public:
  explicit StuckTransport(std::vector<Given>& stuck) : stuck_(stuck) {}
  int rank() const override { return 0; }
  int size() const override { return 3; }
  std::unique_ptr<Channel> open(Memory) override { return std::make_unique<StuckChannel>(stuck_); }

 private:
  std::vector<Given>& stuck_;
};

// In its second round, the ring sends from the work buffer and receives into scratch.
void memory_of_an_abandoned_call_is_given_to_nobody_else() {
  constexpr std::size_t kCount = 50, kRanks = 3;  // elements of a block
  constexpr Kind kCollective = Kind::kReduceScatterBlock;
  std::vector<float> input(kRanks * kCount), output(kCount);
  std::vector<Given> stuck;
  StuckTransport transport(stuck);
  {
    const Call call{.kind = Kind::kReduceScatterBlock,
                    .in = {input.data()},
                    .out = {output.data()},
                    .count = kCount,
                    .dtype = DType::kFloat32};
    const BoundPlanKey key{.collective = kCollective,
                           .name = "ring",
                           .count = kRanks * kCount,
                           .dtype = DType::kFloat32,
                           .in_place = !reads_callers_input(call)};
    ScheduledCall scheduled(call, 0, kRanks);
    scheduled.use(bind_plan(key,
                            std::make_shared<const Schedule>(
                                make_schedule(kCollective, "ring", 0, kRanks, Parameters())),
                            transport));
    expect(!scheduled.step(), "the second round ended");
    expect(!scheduled.holds_memory(), "it holds memory before it is given up");
    scheduled.abandon();
    expect(scheduled.holds_memory(),
           "the caller does not learn that the transport uses its memory");
  }
  expect(stuck.size() == 2, std::to_string(stuck.size()) + " messages of the second round");
  for (const std::size_t bytes : {kRanks * kCount * 4, kCount * 4}) {  // work, scratch
    const std::vector<std::byte> later(bytes);
    for (const Given& one : stuck) {
      if (one.overlaps(later)) return expect(false, "memory in use was given away");
    }
  }
  for (const Given& one : stuck)
    std::memset(one.address, 1, one.bytes);  // the message arrives late
}

}  // namespace
}  // namespace gradred::testing

// Suppresses LeakSanitizer's reports of memory that is kept for ever on purpose. LeakSanitizer
// finds this function only if it is exported.
extern "C" [[gnu::visibility("default")]] const char* __lsan_default_suppressions() {
  return "leak:gradred::ScheduledCall\nleak:gradred::Execution\n";
}

int main() {
  gradred::testing::calls_give_their_results_wherever_the_buffers_are();
  gradred::testing::schedules_alone_read_memory_that_is_not_the_hosts();
  gradred::testing::memory_of_an_abandoned_call_is_given_to_nobody_else();
  return gradred::testing::report("calls over messages");
}
