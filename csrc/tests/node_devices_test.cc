// Operations on arrays in devices' memory: ranks are threads, whose devices work late and whose
// parts of a workspace are anybody's memory. Some ranks have no device now and then.

#include <deque>
#include <random>

#include "memory/workspace.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

// Does a piece of its work whenever somebody asks whether it is done, or none.
class LateWorkspace final : public Workspace {
 public:
  struct Kind {
    std::size_t bytes = 600;
    int device = 0;
    int refuses = -1;  // to open this rank's part
  };

  LateWorkspace(const Kind& kind, std::size_t rank, std::size_t ranks)
      : kind_(kind), rank_(rank), part_(kind.bytes), parts_(ranks), draw_(unsigned(rank)) {
    parts_[rank] = part_.data();
    least_ = kind.bytes;
  }

  Ticket ticket() override {
    const Told mine{part_.data(), kind_.bytes, kind_.device};
    Ticket ticket{};
    std::memcpy(ticket.data(), &mine, sizeof mine);
    return ticket;
  }
  void open(std::size_t rank, const Ticket& ticket) override {
    if (static_cast<int>(rank) == kind_.refuses) throw DeviceError("another namespace");
    Told theirs{};
    std::memcpy(&theirs, ticket.data(), sizeof theirs);
    parts_[rank] = theirs.part;
    least_ = std::min(least_, theirs.bytes);
    one_device_ &= theirs.device == kind_.device;
  }
  std::size_t bytes() const override { return least_; }
  bool is_of_one_device() const override { return one_device_; }
  bool reduces(Op, DType, std::string&) override { return true; }
  void put(std::size_t place, const void* source, std::size_t bytes) override {
    check(place + bytes <= least_, "a put behind the end");
    give([=, this] { std::memcpy(part_.data() + place, source, bytes); });
  }
  void put_scaled(std::size_t place, const void* source, DType dtype, std::size_t count,
                  double factor) override {
    put(place, source, count * size_of(dtype));
    give([=, this] { scale(part_.data() + place, count, dtype, factor, false); });
  }
  void get(void* target, std::size_t rank, std::size_t place, std::size_t bytes) override {
    check(place + bytes <= least_, "a get behind the end");
    give([=, this] { std::memcpy(target, parts_[rank] + place, bytes); });
  }
  void reduce(Op op, DType dtype, std::size_t place, std::size_t count) override {
    check(place + count * size_of(dtype) <= least_, "a reduction behind the end");
    ++reductions;
    give([=, this] {
      std::vector<const void*> inputs;
      for (const std::byte* part : parts_) inputs.push_back(part + place);
      find_reduction(op, dtype)->many(part_.data() + place, inputs.data(), inputs.size(), count);
    });
  }
  bool ready() override {
    if (!work_.empty() && draw_() % 3 == 0) {
      work_.front()();
      work_.pop_front();
    }
    return work_.empty();
  }
  bool abandon() noexcept override { return true; }

  std::size_t reductions = 0;

 private:
  struct Told {
    std::byte* part;
    std::size_t bytes;
    int device;
  };
  void give(std::function<void()> work) { work_.push_back(std::move(work)); }

  const Kind kind_;
  const std::size_t rank_;
  std::vector<std::byte> part_;
  std::vector<std::byte*> parts_;
  std::size_t least_ = 0;
  bool one_device_ = true;
  std::deque<std::function<void()>> work_;
  std::mt19937 draw_;
};

// A call whose arrays are on a device, until it is carried out by the host.
class OnDevice final : public Flow {
 public:
  OnDevice(LateWorkspace& workspace, const Call& call, const Case& c, std::byte* recv, int rank)
      : send_(call.in_place ? kInPlace : c.send.data()), recv_(recv) {
    const bool from_recv = call.in_place || call.kind == Kind::kBcast;
    device_.workspace = &workspace;
    device_.before = &before_;
    device_.input = from_recv ? recv : c.send.data();
    if (from_recv && call.kind == Kind::kAllgather) {
      device_.input += static_cast<std::size_t>(rank) * call.count * size_of(call.dtype);
    }
    device_.result = recv;
    device_.op = call.op;
    device_.dtype = call.dtype;
  }
  bool has_input(std::size_t) override { return true; }
  void has_result(std::size_t) override {}
  DeviceCall* device() override { return on_host ? nullptr : &device_; }
  void to_host(const void*& send, void*& recv) override {
    on_host = true;
    send = send_;
    recv = recv_;
  }

  bool on_host = false;

 private:
  const void* const send_;
  std::byte* const recv_;
  Stream before_{Memory()};
  DeviceCall device_;
};

// Returns whether it went from device to device.
bool run_on_device(NodeGroup& group, LateWorkspace& workspace, const Call& call, unsigned seed) {
  constexpr std::size_t kFence = 64;
  const Case c = make_case(call, group.rank(), group.size(), seed);
  Bytes fenced(c.recv.size() + 2 * kFence, std::byte{0x5A});
  std::copy(c.recv.begin(), c.recv.end(), fenced.begin() + kFence);
  std::byte* const recv = fenced.data() + kFence;
  OnDevice flow(workspace, call, c, recv, group.rank());
  NodeCall made = node_call(call, kInPlace, nullptr);
  if (!call.in_place) made.send = c.send.data();
  made.recv = recv;
  made.flow = &flow;
  made.device = workspace.refused() ? nullptr : flow.device();
  NodeExecution execution(group);
  execution.start(made);
  while (!execution.advance()) sched_yield();
  const std::string what = text_of(call, group.size());
  expect(std::equal(c.expected.begin(), c.expected.end(), recv), "wrong result: " + what);
  for (std::size_t i = 0; i < kFence; ++i) {
    expect(fenced[i] == std::byte{0x5A} && fenced[fenced.size() - 1 - i] == std::byte{0x5A},
           "written outside of the result: " + what);
  }
  return execution.ran_on_devices();
}

Call drawn(std::mt19937& agreed, int size) {
  constexpr std::array kKinds = {Kind::kAllreduce, Kind::kReduceScatterBlock, Kind::kAllgather,
                                 Kind::kBcast};
  constexpr std::array kTypes = {DType::kFloat32, DType::kFloat64, DType::kUInt8, DType::kInt32};
  Call call;
  call.kind = kKinds[agreed() % kKinds.size()];
  call.dtype = kTypes[agreed() % kTypes.size()];
  call.op = agreed() % 2 == 0 ? Op::kSum : Op::kMax;
  call.count = agreed() % (agreed() % 3 == 0 ? 20 : 3000);
  call.in_place = call.kind != Kind::kBcast && agreed() % 3 == 0;
  call.root = static_cast<int>(agreed() % static_cast<unsigned>(size));
  return call;
}

void calls_in_any_memory(BoardBootstrap& bootstrap, const LateWorkspace::Kind& kind) {
  const auto group = make_group(bootstrap, small_paths());
  const auto self = static_cast<std::size_t>(group->rank());
  LateWorkspace workspace(kind, self, static_cast<std::size_t>(group->size()));
  constexpr std::size_t kNobody = ~std::size_t{0};
  std::mt19937 agreed(5);
  std::size_t on_devices = 0;
  for (unsigned i = 0; i < 150; ++i) {
    const Call call = drawn(agreed, group->size());
    const std::size_t without =
        agreed() % 3 == 0 ? agreed() % static_cast<std::size_t>(group->size()) : kNobody;
    if (without == self) {
      run_call(*group, call, i);
      continue;
    }
    on_devices += run_on_device(*group, workspace, call, i) ? 1 : 0;
  }
  expect(!workspace.refused() && on_devices > 20, "most go from device to device");
}

void one_device(BoardBootstrap& bootstrap) { calls_in_any_memory(bootstrap, {}); }
void a_device_each(BoardBootstrap& bootstrap) {
  const int rank = bootstrap.rank();
  calls_in_any_memory(bootstrap, {.bytes = 500 + 100 * std::size_t(rank), .device = rank});
}
void parts_that_cannot_be_opened(BoardBootstrap& bootstrap) {
  // Rank 0 alone cannot open the last one's; all leave it at that.
  const bool fails = bootstrap.rank() == 0;
  const auto group = make_group(bootstrap, small_paths());
  LateWorkspace workspace({.refuses = fails ? group->size() - 1 : -1}, std::size_t(group->rank()),
                          std::size_t(group->size()));
  for (unsigned i = 0; i < 20; ++i) {
    const bool went = run_on_device(*group, workspace, {.count = 2000}, i);
    expect(!went && workspace.refused(), "nobody uses it");
  }
  expect(contains(workspace.why_refused(), "another namespace"), workspace.why_refused());
}

int run_all(const std::string& part) {
  Report report(part);
  for (const int size : {2, 3, 5}) {
    const auto on = on_ranks(report, Ranks::kThreads);
    on(size, "one_device", one_device);
    on(size, "a_device_each", a_device_each);
    on(size, "parts_that_cannot_be_opened", parts_that_cannot_be_opened);
  }
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
