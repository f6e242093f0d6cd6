// Node group operations on arrays in device memory. The ranks are threads with simulated devices
// that work late. The parts of a workspace are ordinary memory. At times a rank has no device.

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <span>

#include "memory/workspace.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

// Arrays that peers access directly, as many as a call has.
class LateArrays final : public SharedArrays {
 public:
  static constexpr std::size_t kShared = 200'000, kAllocations = 2;

  // `refuses`: to open the arrays of this rank; -1: none. `programs`: whether they are the
  // program's own.
  LateArrays(int refuses, bool programs)
      : refuses_(refuses), first_(programs ? SharedPlace::kFirstOfPrograms : 1) {}

  SharedPlace place_of(const void* array) const {
    const auto* const at = static_cast<const std::byte*>(array);
    for (std::size_t i = 0; i < kAllocations; ++i) {
      const std::byte* const begin = shared_[i].data();
      if (at >= begin && at < begin + shared_[i].size()) {
        return {first_ + i, std::size_t(at - begin)};
      }
    }
    return {};
  }
  std::span<std::byte> shared(std::size_t allocation) { return shared_[allocation]; }

  Places find(Array, Array) override { return {}; }
  Ticket ticket_of(SharedPlace place) override {
    std::byte* const begin = shared_[place.allocation() - first_].data();
    Ticket ticket{};
    std::memcpy(ticket.data(), &begin, sizeof begin);
    return ticket;
  }
  void open(std::size_t rank, SharedPlace place, const Ticket& ticket) override {
    if (static_cast<int>(rank) == refuses_) throw DeviceError("no more handles");
    std::memcpy(&opened_[{rank, place.allocation()}], ticket.data(), sizeof(std::byte*));
  }
  std::byte* address(std::size_t rank, SharedPlace place) override {
    return opened_.at({rank, place.allocation()}) + place.offset();
  }
  bool has_ended() override { return false; }
  std::vector<std::uint64_t> take_ended(std::size_t) override { return {}; }
  void close(std::size_t, std::uint64_t) override {}
  void let_go_of_programs() noexcept override {}

 private:
  const int refuses_;
  const std::uint64_t first_;
  std::array<Bytes, kAllocations> shared_{Bytes(kShared), Bytes(kShared)};
  std::map<std::pair<std::size_t, std::uint64_t>, std::byte*> opened_;
};

// Does at most one piece of its work whenever ready() is called.
class LateWorkspace final : public Workspace {
 public:
  struct Kind {
    std::size_t bytes = 600;
    int device = 0;
    int refuses = -1;         // to open the part of this rank; -1: none
    int refuses_arrays = -1;  // to open the arrays of this rank; -1: none
    bool programs = false;    // whether its arrays are the program's own
  };

  LateWorkspace(const Kind& kind, std::size_t rank, std::size_t ranks)
      : kind_(kind),
        arrays_(kind.refuses_arrays, kind.programs),
        part_(kind.bytes),
        parts_(ranks),
        draw_(unsigned(rank)) {
    parts_[rank] = part_.data();
    facts_.bytes = kind.bytes;
    facts_.most_targets = 4;
  }

  Ticket ticket() override {
    const Contents mine{part_.data(), kind_.bytes, kind_.device};
    Ticket ticket{};
    std::memcpy(ticket.data(), &mine, sizeof mine);
    return ticket;
  }
  void open(std::size_t rank, const Ticket& ticket) override {
    if (static_cast<int>(rank) == kind_.refuses) throw DeviceError("another namespace");
    Contents theirs{};
    std::memcpy(&theirs, ticket.data(), sizeof theirs);
    parts_[rank] = theirs.part;
    facts_.bytes = std::min(facts_.bytes, theirs.bytes);
    facts_.is_of_one_device &= theirs.device == kind_.device;
  }
  bool attempt(const std::function<void()>& open) override { return open(), true; }
  bool reduces(Op, DType, std::string&) override { return true; }
  LateArrays& arrays() override { return arrays_; }
  std::byte* part(std::size_t rank, std::size_t place) override {
    check(place < facts_.bytes, "a place behind the end");
    return parts_[rank] + place;
  }
  void copy(void* target, const void* source, std::size_t bytes) override {
    give([=] { std::memcpy(target, source, bytes); });
  }
  void copy_scaled(void* target, const void* source, DType dtype, std::size_t count,
                   double factor) override {
    copy(target, source, count * size_of(dtype));
    give([=] { scale(target, count, dtype, factor, false); });
  }
  void reduce(Op op, DType dtype, std::span<void* const> targets,
              std::span<const void* const> inputs, std::size_t count) override {
    ++reductions;
    give([=, to = std::vector(targets.begin(), targets.end()),
          from = std::vector(inputs.begin(), inputs.end())] {
      Bytes result(count * size_of(dtype));
      find_reduction(op, dtype)->many(result.data(), from.data(), from.size(), count);
      for (void* const target : to) std::ranges::copy(result, static_cast<std::byte*>(target));
    });
  }
  bool ready() override {
    if (!work_.empty() && draw_() % 3 == 0 && work_.front()()) work_.pop_front();
    return work_.empty();
  }
  std::unique_ptr<EnqueuedWork> give(Stream&) override {
    ++given;
    return std::make_unique<LateGiven>(*this);
  }
  bool has_enqueued_work() override { return false; }
  bool abandon() noexcept override { return true; }
  void keep_all() noexcept override {}

  std::size_t reductions = 0, given = 0;

 private:
  class LateGiven final : public EnqueuedWork {
   public:
    explicit LateGiven(LateWorkspace& workspace) : workspace_(workspace) {}
    ~LateGiven() override { words_->begins = words_->ends = true; }
    LateGiven(const LateGiven&) = delete;
    LateGiven& operator=(const LateGiven&) = delete;
    void enqueue(const std::function<void()>& work, EndEvent& end) override {
      auto& all = workspace_.work_;
      all.push_back([words = words_] { return words->input = true; });
      all.push_back([words = words_] { return words->begins.load(); });
      work();
      all.push_back([words = words_] { return words->done = true; });
      all.push_back([words = words_] { return words->ends.load(); });
      end.set(std::make_shared<const RecordedEvent>());
    }
    bool input_is_there() override { return words_->input; }
    void begin() noexcept override { words_->begins = true; }
    bool is_done() override { return words_->done; }
    void end() noexcept override { words_->ends = true; }

   private:
    struct Words {
      std::atomic<bool> input{false}, begins{false}, done{false}, ends{false};
    };
    LateWorkspace& workspace_;
    const std::shared_ptr<Words> words_ = std::make_shared<Words>();
  };
  struct Contents {
    std::byte* part;
    std::size_t bytes;
    int device;
  };
  void give(const std::function<void()>& work) {
    work_.push_back([work] { return work(), true; });
  }

  const Kind kind_;
  LateArrays arrays_;
  std::vector<std::byte> part_;
  std::vector<std::byte*> parts_;
  std::deque<std::function<bool()>> work_;  // each returns whether it is done
  std::mt19937 draw_;
};

// A call whose arrays are on a device, unless the host has to carry it out.
class OnDevice final : public Flow {
 public:
  OnDevice(LateWorkspace& workspace, const Call& call, const std::byte* send, std::byte* recv,
           int rank, EndEvent* given = nullptr)
      : send_(call.in_place ? kInPlace : send), recv_(recv) {
    const bool from_recv = call.in_place || call.kind == Kind::kBcast;
    device_.workspace = &workspace;
    device_.given = given;
    device_.before = &before_;
    device_.input = from_recv ? recv : send;
    if (from_recv && call.kind == Kind::kAllgather) {
      device_.input += static_cast<std::size_t>(rank) * call.count * size_of(call.dtype);
    }
    device_.result = recv;
    device_.op = call.op;
    device_.dtype = call.dtype;
    const bool scatters = call.kind == Kind::kReduceScatterBlock;
    if (!(scatters && call.in_place))
      device_.input_place = workspace.arrays().place_of(device_.input);
    device_.result_place = workspace.arrays().place_of(recv);
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

// Which arrays of a call peers can access directly.
struct Shared {
  bool input = false, result = false;
};

// Returns whether the call went from device to device.
bool run_on_device(NodeGroup& group, LateWorkspace& workspace, const Call& call, unsigned seed,
                   Shared shared = {}) {
  constexpr std::size_t kFence = 64;
  const Case c = make_case(call, group.rank(), group.size(), seed);
  Bytes own(c.recv.size() + 2 * kFence);
  const std::span<std::byte> fenced =
      shared.result ? workspace.arrays().shared(0).first(own.size()) : std::span(own);
  std::ranges::fill(fenced, std::byte{0x5A});
  std::ranges::copy(c.recv, fenced.begin() + kFence);
  std::byte* const recv = fenced.data() + kFence;
  const std::byte* send = c.send.data();
  if (shared.input) {
    std::ranges::copy(c.send, workspace.arrays().shared(1).begin());
    send = workspace.arrays().shared(1).data();
  }
  OnDevice flow(workspace, call, send, recv, group.rank());
  NodeCall made = node_call(call, kInPlace, nullptr);
  if (!call.in_place) made.send = send;
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
  std::mt19937 agreed(5), own(unsigned(self) + 1);
  std::size_t on_devices = 0;
  for (unsigned i = 0; i < 150; ++i) {
    const Call call = drawn(agreed, group->size());
    // Either the arrays of all ranks are shared, or each rank decides for itself.
    const bool all = agreed() % 2 == 0, any = own() % 2 == 0;
    const Shared shared = all ? Shared{true, true} : Shared{any, own() % 2 == 0};
    const std::size_t without =
        agreed() % 3 == 0 ? agreed() % static_cast<std::size_t>(group->size()) : kNobody;
    if (without == self) {
      run_call(*group, call, i);
      continue;
    }
    on_devices += run_on_device(*group, workspace, call, i, shared) ? 1 : 0;
  }
  expect(!workspace.refused() && on_devices > 20, "most go from device to device");
}

void one_device(BoardBootstrap& bootstrap) { calls_in_any_memory(bootstrap, {}); }
void a_device_each(BoardBootstrap& bootstrap) {
  const int rank = bootstrap.rank();
  calls_in_any_memory(bootstrap, {.bytes = 500 + 100 * std::size_t(rank), .device = rank});
}
void parts_that_cannot_be_opened(BoardBootstrap& bootstrap) {
  // Only rank 0 cannot open the last rank's part, but all ranks must stop using the workspaces.
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

// `programs`: whether the last rank's arrays are the program's own.
void arrays_are_refused(BoardBootstrap& bootstrap, bool programs) {
  const bool fails = bootstrap.rank() == 0;
  const auto group = make_group(bootstrap, small_paths());
  const int last = group->size() - 1;
  LateWorkspace workspace(
      {.refuses_arrays = fails ? last : -1, .programs = programs && bootstrap.rank() == last},
      std::size_t(group->rank()), std::size_t(group->size()));
  for (unsigned i = 0; i < 20; ++i) {
    const bool went = run_on_device(*group, workspace, {.count = 2000}, i, {true, true});
    expect(went && workspace.arrays().takes_any() == programs, "piece by piece, then");
    expect(workspace.arrays().takes_programs() != programs, "which, all ranks know");
    expect(!workspace.arrays().taken() && !workspace.arrays().programs_taken(),
           "none where it lies");
  }
  const std::string& why =
      programs ? workspace.arrays().why_no_programs() : workspace.arrays().why_none();
  expect(contains(why, "no more handles"), why);
}
void arrays_that_cannot_be_opened(BoardBootstrap& bootstrap) {
  arrays_are_refused(bootstrap, false);
}
void arrays_of_the_programs_that_cannot_be_opened(BoardBootstrap& bootstrap) {
  arrays_are_refused(bootstrap, true);
}
void sums_where_the_arrays_lie_take_one_kernel(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  const auto size = std::size_t(group->size());
  LateWorkspace workspace({}, std::size_t(group->rank()), size);
  for (unsigned i = 0; i < 5; ++i) {
    run_on_device(*group, workspace, {.count = 20'000}, i, {true, true});
  }
  const bool by_pieces = size > workspace.facts().most_targets;
  const std::size_t wanted = group->rank() == 0 ? 5 : 0;
  expect((workspace.reductions == wanted) != (by_pieces && group->rank() == 0),
         "kernels: " + std::to_string(workspace.reductions));
}

// A call of which the rest may be left to the devices. Its arrays lie in a place of their own.
class LeftCall {
 public:
  static constexpr std::size_t kPlaces = 6;

  LeftCall(NodeGroup& group, LateWorkspace& workspace, const Call& call, unsigned seed, bool gives)
      : call_(call),
        case_(make_case(call, group.rank(), group.size(), seed)),
        result_(workspace.arrays().shared(0).subspan(seed % kPlaces * kRoom, case_.recv.size())) {
    std::ranges::copy(case_.recv, result_.begin());
    const std::span<std::byte> input =
        workspace.arrays().shared(1).subspan(seed % kPlaces * kRoom, kRoom);
    std::ranges::copy(case_.send, input.begin());
    flow_.emplace(workspace, call, input.data(), result_.data(), group.rank(),
                  gives ? &end_ : nullptr);
    made_ = node_call(call, kInPlace, nullptr);
    if (!call.in_place) made_.send = input.data();
    made_.recv = result_.data();
    made_.flow = &*flow_;
    made_.device = flow_->device();
  }
  const NodeCall& made() const { return made_; }
  bool is_over() {
    DeviceCall* const device = flow_->device();
    return device == nullptr || device->rest == nullptr || device->rest->is_over();
  }
  void check_result(int size) const {
    expect(std::equal(case_.expected.begin(), case_.expected.end(), result_.begin()),
           "wrong result: " + text_of(call_, size));
  }

 private:
  static constexpr std::size_t kRoom = 33'000;
  const Call call_;
  const Case case_;
  const std::span<std::byte> result_;
  EndEvent end_;
  std::optional<OnDevice> flow_;
  NodeCall made_;
};

// Each rank decides for itself which calls it gives its device at once, and how many of these are
// under way before it looks at them.
void work_that_is_given_at_once(BoardBootstrap& bootstrap, int device) {
  const auto group = make_group(bootstrap, small_paths());
  const auto self = static_cast<std::size_t>(group->rank());
  LateWorkspace workspace({.device = device}, self, static_cast<std::size_t>(group->size()));
  std::mt19937 agreed(7), own(unsigned(self) + 11);
  std::deque<std::unique_ptr<LeftCall>> left;
  const auto finish_first = [&] {
    while (!left.front()->is_over()) {
      workspace.ready();
      sched_yield();
    }
    left.front()->check_result(group->size());
    left.pop_front();
  };
  for (unsigned i = 0; i < 300; ++i) {
    Call call = drawn(agreed, group->size());
    call.count = 300 + call.count % 500;
    if (left.size() == LeftCall::kPlaces - 1) finish_first();
    auto next = std::make_unique<LeftCall>(*group, workspace, call, i, own() % 3 != 0);
    NodeExecution execution(*group);
    execution.start(next->made());
    while (!execution.advance()) {
      workspace.ready();
      sched_yield();
    }
    left.push_back(std::move(next));
    while (!left.empty() && own() % 2 == 0) finish_first();
  }
  while (!left.empty()) finish_first();
  expect(workspace.given > 30, "many are given at once: " + std::to_string(workspace.given));
  run_call(*group, {.count = 10}, 0);  // nobody leaves before the others are through
}
void work_that_is_given_to_one_device(BoardBootstrap& bootstrap) {
  work_that_is_given_at_once(bootstrap, 0);
}
void work_that_is_given_to_a_device_each(BoardBootstrap& bootstrap) {
  work_that_is_given_at_once(bootstrap, bootstrap.rank());
}

int run_all(const std::string& part) {
  Report report(part);
  for (const int size : {2, 3, 5}) {
    const auto on = on_ranks(report, Ranks::kThreads);
    on(size, "one_device", one_device);
    on(size, "a_device_each", a_device_each);
    on(size, "parts_that_cannot_be_opened", parts_that_cannot_be_opened);
    on(size, "arrays_that_cannot_be_opened", arrays_that_cannot_be_opened);
    on(size, "arrays_of_the_programs_that_cannot_be_opened",
       arrays_of_the_programs_that_cannot_be_opened);
    on(size, "sums_where_the_arrays_lie_take_one_kernel",
       sums_where_the_arrays_lie_take_one_kernel);
    on(size, "work_that_is_given_to_one_device", work_that_is_given_to_one_device);
    on(size, "work_that_is_given_to_a_device_each", work_that_is_given_to_a_device_each);
  }
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
