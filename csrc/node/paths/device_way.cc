#include "node/paths/device_way.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/failure.h"
#include "memory/workspace.h"
#include "node/memory/enqueued_calls.h"

namespace gradred {
namespace {

constexpr std::size_t kRoom = 3;      // pieces that a part has room for
constexpr std::size_t kAligned = 16;  // alignment in bytes for wide loads of devices

// A range of elements.
struct Range {
  std::size_t at, count;
};

// The range of `all` sums that the device of `rank` computes. On a shared device processes compute
// in turn, so one of them computes all. Otherwise each rank computes its share.
Range range_of_sums(const Workspace& workspace, std::size_t all, std::size_t rank, std::size_t size,
                    std::size_t element) {
  if (workspace.facts().is_of_one_device) return {0, rank == 0 ? all : 0};
  const std::size_t unit = kAligned / element;
  const std::size_t each = (all + unit * size - 1) / (unit * size) * unit;
  const std::size_t at = std::min(all, rank * each);
  return {at, std::min(each, all - at)};
}

bool is_reduction(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduceScatterBlock;
}

// The work of one rank on each piece.
class DevicePieces {
 public:
  DevicePieces(const NodeCall& call, std::size_t rank, std::size_t size)
      : call_(call),
        device_(*call.device),
        workspace_(*call.device->workspace),
        rank_(rank),
        size_(size),
        room_(workspace_.facts().bytes / kRoom / kAligned * kAligned),
        stride_(scatters() ? room_ / size / kAligned * kAligned : room_),
        per_piece_(stride_ / call.element) {}

  std::size_t count() const { return (call_.count + per_piece_ - 1) / per_piece_; }
  // The number of steps after which a piece of the result can be complete.
  std::size_t lag() const { return reduces() ? 2 : 1; }

  void put(std::size_t piece) {
    if (call_.kind == Kind::kBcast && rank_ != root()) return;
    for (std::size_t block = 0; block < (scatters() ? size_ : 1); ++block) {
      const std::size_t from = block * call_.count + begin(piece);
      const std::size_t to = place(piece) + block * stride_;
      const std::byte* const source = device_.input + from * call_.element;
      std::byte* const target = workspace_.part(rank_, to);
      if (device_.op == Op::kPremul && reduces()) {
        workspace_.copy_scaled(target, source, device_.dtype, length(piece), device_.factor);
      } else {
        workspace_.copy(target, source, length(piece) * call_.element);
      }
    }
  }
  void reduce(std::size_t piece) {
    if (!reduces()) return;
    const Share mine = share(piece, rank_);
    if (mine.count == 0) return;
    std::vector<const void*> inputs(size_);
    for (std::size_t rank = 0; rank < size_; ++rank) {
      inputs[rank] = workspace_.part(rank, mine.place);
    }
    void* const target = workspace_.part(rank_, mine.place);
    workspace_.reduce(device_.op, device_.dtype, {&target, 1}, inputs, mine.count);
  }
  void get(std::size_t piece) {
    std::byte* const target = device_.result + begin(piece) * call_.element;
    for (std::size_t rank = 0; rank < size_; ++rank) {
      const Share theirs = share(piece, rank);
      if (theirs.count == 0) continue;
      workspace_.copy(target + theirs.at * call_.element, workspace_.part(rank, theirs.place),
                      theirs.count * call_.element);
    }
  }

 private:
  // The elements of a result piece that lie in a rank's part and that this rank needs. `at`: their
  // offset in this rank's result, relative to the piece. `place`: their offset in the part.
  struct Share {
    std::size_t at = 0, count = 0, place = 0;
  };

  bool reduces() const { return is_reduction(call_.kind); }
  bool scatters() const { return call_.kind == Kind::kReduceScatterBlock; }
  std::size_t root() const { return static_cast<std::size_t>(call_.root); }
  std::size_t begin(std::size_t piece) const { return piece * per_piece_; }
  std::size_t length(std::size_t piece) const {
    return std::min(per_piece_, call_.count - begin(piece));
  }
  std::size_t place(std::size_t piece) const { return piece % kRoom * room_; }

  Share share(std::size_t piece, std::size_t rank) const {
    const std::size_t all = length(piece), where = place(piece);
    switch (call_.kind) {
      case Kind::kAllgather:
        return {rank * call_.count, all, where};
      case Kind::kBcast:
        return {0, rank == root() && rank_ != root() ? all : 0, where};
      case Kind::kReduceScatterBlock:
        return {0, rank == rank_ ? all : 0, where + rank * stride_};
      default:
        return share_of_sums(all, rank, where);
    }
  }
  Share share_of_sums(std::size_t all, std::size_t rank, std::size_t where) const {
    const Range mine = range_of_sums(workspace_, all, rank, size_, call_.element);
    return {mine.at, mine.count, where + mine.at * call_.element};
  }

  const NodeCall& call_;
  DeviceCall& device_;
  Workspace& workspace_;
  const std::size_t rank_, size_, room_, stride_, per_piece_;
};

void write(const std::string& text, std::span<char> to) {
  to[text.copy(to.data(), to.size() - 1)] = '\0';
}

SharedPlace input_of(const ReadOffer& offer) {
  return SharedPlace(std::bit_cast<std::uint64_t>(offer.input));
}
SharedPlace result_of(const ReadOffer& offer) {
  return SharedPlace(std::bit_cast<std::uint64_t>(offer.output));
}

}  // namespace

// Passes counts on between this rank's device and its peers. Other operations of the group may go
// on meanwhile.
class DeviceWay::Rest final : public EnqueuedCall {
 public:
  // `given` lives longer than the object.
  Rest(NodeAgreement& group, std::unique_ptr<EnqueuedWork> work, const EndEvent& given,
       std::uint64_t call, std::shared_ptr<std::atomic<int>> rests)
      : group_(group),
        work_(std::move(work)),
        given_(given),
        call_(call),
        rests_(std::move(rests)) {
    EnqueuedCalls::add(*this);  // may throw
    ++*rests_;
  }
  ~Rest() override {
    EnqueuedCalls::remove(*this);
    if (stage_ < Stage::kOver) --*rests_;
  }
  Rest(const Rest&) = delete;
  Rest& operator=(const Rest&) = delete;

  EnqueuedWork& work() { return *work_; }
  bool pass_on() noexcept override {
    const std::lock_guard lock(mutex_);
    go_on();
    return stage_ >= Stage::kOver;
  }
  bool is_over() override {
    const std::lock_guard lock(mutex_);
    go_on();
    if (failure_) std::rethrow_exception(failure_);
    return stage_ == Stage::kOver;
  }
  void give_up(const std::exception_ptr& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (stage_ < Stage::kOver) group_.poison(report_of(reason));
  }
  bool spins() const override { return group_.spins(); }

 private:
  enum class Stage : std::uint8_t { kInput, kArrays, kShare, kShares, kOver, kFailed };

  void go_on() noexcept {
    if (stage_ >= Stage::kOver || has_passed_on()) return;
    try {
      look_after_peers();
    } catch (...) {
      if (has_passed_on()) return;  // a peer may have left right after it did its part
      failure_ = std::current_exception();
      group_.poison(report_of(failure_));
      work_->end();
      stage_ = Stage::kFailed;
      --*rests_;
    }
  }
  bool has_passed_on() {
    const Stage before = stage_;
    if (stage_ == Stage::kInput && work_->input_is_there()) {
      group_.tell_arrays_there(call_);
      stage_ = Stage::kArrays;
    }
    if (stage_ == Stage::kArrays &&
        all([&](int rank) { return group_.arrays_there(rank, call_); })) {
      work_->begin();
      stage_ = Stage::kShare;
    }
    if (stage_ == Stage::kShare && work_->is_done()) {
      group_.tell_share_done(call_);
      stage_ = Stage::kShares;
    }
    if (stage_ == Stage::kShares && all([&](int rank) { return group_.share_done(rank, call_); })) {
      work_->end();
      stage_ = Stage::kOver;
      --*rests_;
    }
    return stage_ != before;
  }
  void look_after_peers() {
    constexpr std::uint64_t kLookEveryNs = 20'000'000;
    group_.throw_if_poisoned();
    const std::uint64_t now = now_ns();
    if (looked_ns_ == 0) looked_ns_ = now;
    if (now - looked_ns_ < kLookEveryNs) return;
    looked_ns_ = now;
    group_.check_peers();
    if (const std::uint64_t deadline = given_.deadline_ns(); deadline != 0 && now > deadline) {
      throw WaitTimeout(
          "an operation for which a stream waits has not ended on the devices of all ranks within "
          "the time limit of the group. See what the program's work before it waits for, on each "
          "rank, or pass a longer timeout to the group");
    }
  }
  template <class Word>
  bool all(Word word) const {
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rank != group_.rank() && !word(rank).reached()) return false;
    }
    return true;
  }

  NodeAgreement& group_;
  const std::unique_ptr<EnqueuedWork> work_;
  const EndEvent& given_;
  const std::uint64_t call_;
  // The calls of the group that have such a rest; it may outlive the group.
  const std::shared_ptr<std::atomic<int>> rests_;
  std::mutex mutex_;
  Stage stage_ = Stage::kInput;
  std::exception_ptr failure_;
  std::uint64_t looked_ns_ = 0;
};

// What a rank asks its peers to open; it travels in a chunk.
struct DeviceWay::Requested {
  static constexpr std::size_t kMostEnded = 64;

  bool not_now;  // peers must open nothing, only close what has ended
  Ticket part;
  SharedPlace input, result;
  Ticket of_input, of_result;
  std::uint64_t ended[kMostEnded];  // allocations to close; 0 ends the list
};

// The outcome of opening the peers' memory. Empty texts: success.
struct DeviceWay::Opened {
  char why[500];  // for the peers' parts
  char why_no_arrays[500];
  char why_no_programs[500];
  bool not_now;  // opening was not tried (Workspace::attempt)

  std::span<char> why_not(SharedPlace place) {
    return place.is_programs() ? why_no_programs : why_no_arrays;
  }
};

// The call's arrays do not change any more.
DeviceWay::Requested DeviceWay::requested_by(const DeviceCall& device) {
  Workspace& workspace = *device.workspace;
  Requested requested{};
  std::ranges::copy(workspace.arrays().take_ended(Requested::kMostEnded), requested.ended);
  SharedArrays& arrays = workspace.arrays();
  requested.not_now = !workspace.attempt([&] {
    if (!workspace.in_use()) requested.part = workspace.ticket();
    if (arrays.takes(device.input_place)) requested.input = device.input_place;
    if (arrays.takes(device.result_place)) requested.result = device.result_place;
    if (requested.input) requested.of_input = arrays.ticket_of(requested.input);
    if (requested.result) requested.of_result = arrays.ticket_of(requested.result);
  });
  return requested;
}

void DeviceWay::offer(const DeviceCall& device, ReadOffer& offer) {
  offer.says |= ReadOffer::kOnDevice;
  if (device.workspace->facts().is_used_by_turns) offer.says |= ReadOffer::kByTurns;
  offer.input = nullptr;
  offer.output = nullptr;
  SharedArrays& arrays = device.workspace->arrays();
  const auto offered = [&](SharedPlace place) {
    if (!arrays.takes(place)) return SharedPlace();
    if (place && !arrays.is_known(place)) offer.says |= ReadOffer::kUnknown;
    return place;
  };
  offer.input = std::bit_cast<const std::byte*>(offered(device.input_place).word());
  offer.output = std::bit_cast<std::byte*>(offered(device.result_place).word());
  if (arrays.has_ended()) offer.says |= ReadOffer::kUnknown;
}

bool DeviceWay::serves(Kind kind) {
  return is_reduction(kind) || kind == Kind::kAllgather || kind == Kind::kBcast;
}

bool DeviceWay::all_are(const NodeCall& call) const {
  if (call.device == nullptr) return false;
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if ((offer_of(rank).says & ReadOffer::kOnDevice) == 0) return false;
  }
  return !is_faster_on_host(call);
}

bool DeviceWay::any_says(std::uint16_t what) const {
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if ((offer_of(rank).says & what) != 0) return true;
  }
  return false;
}

// Copies within a device use its compute units, for which processes wait in turn. Copies to and
// from the host need no such wait. All ranks get the same answer.
bool DeviceWay::is_faster_on_host(const NodeCall& call) const {
  constexpr std::size_t kWorthTurns = std::size_t{2} << 20;
  const Workspace& workspace = *call.device->workspace;
  const bool copies = workspace.in_use() && !any_says(ReadOffer::kUnknown) && !takes_arrays(call);
  return copies && call.bytes() < kWorthTurns && workspace.facts().is_of_one_device &&
         any_says(ReadOffer::kByTurns);
}

// Whether each rank's device can read what it needs directly from the peers' arrays. All ranks get
// the same answer, since it depends only on the announcements.
bool DeviceWay::takes_arrays(const NodeCall& call) const {
  Workspace& workspace = *call.device->workspace;
  const SharedArrays& arrays = workspace.arrays();
  const bool reduces = is_reduction(call.kind);
  if (!arrays.takes_any() || (reduces && call.device->op == Op::kPremul)) return false;
  if (call.kind == Kind::kAllreduce && size_ > workspace.facts().most_targets) return false;
  const auto is_there = [&](SharedPlace place) { return place && arrays.takes(place); };
  for (std::size_t rank = 0; rank < size_; ++rank) {
    if (call.kind == Kind::kBcast && rank != static_cast<std::size_t>(call.root)) continue;
    const ReadOffer offer = offer_of(rank);
    if (!is_there(input_of(offer))) return false;
    if (call.kind == Kind::kAllreduce && !is_there(result_of(offer))) return false;
  }
  return true;
}

// Opens what a peer has requested. The caller skips peers that had no tickets now
// (`Requested::not_now`).
void DeviceWay::open(Workspace& workspace, std::size_t peer, const Requested& requested,
                     Opened& found) const {
  const auto attempt = [this](std::span<char> why, const auto& work) {
    try {
      work();
    } catch (const std::exception& error) {
      write(group_.own_name() + ": " + error.what(), why);
    }
  };
  if (!workspace.in_use() && found.why[0] == '\0') {
    attempt(found.why, [&] { workspace.open(peer, requested.part); });
  }
  const auto open_array = [&](SharedPlace place, const Ticket& ticket) {
    if (!place) return;
    attempt(found.why_not(place), [&] { workspace.arrays().open(peer, place, ticket); });
  };
  open_array(requested.input, requested.of_input);
  open_array(requested.result, requested.of_result);
}

// Opens what all peers have requested in their chunks.
DeviceWay::Opened DeviceWay::opened(Workspace& workspace) const {
  std::vector<Requested> requested(size_);
  for (std::size_t distance = 1; distance < size_; ++distance) {
    const std::size_t peer = peer_at(distance);
    std::memcpy(&requested[peer], chunk(peer, 0), sizeof requested[peer]);
    for (const std::uint64_t number : requested[peer].ended) {
      if (number != 0) workspace.arrays().close(peer, number);
    }
  }
  Opened found{};
  found.not_now = !workspace.attempt([&] {
    for (std::size_t distance = 1; distance < size_; ++distance) {
      const std::size_t peer = peer_at(distance);
      if (!requested[peer].not_now) open(workspace, peer, requested[peer], found);
    }
  });
  return found;
}

// Gives the device this rank's share at once, if the caller asks for that and it is possible.
// Counts are passed on from before the first wait is given: another thread may let the driver wait
// for the device in between.
bool DeviceWay::give(const NodeCall& call) {
  DeviceCall& device = *call.device;
  if (device.given == nullptr) return false;
  auto work = device.workspace->give(*device.before);
  if (work == nullptr) return false;
  auto rest = std::make_unique<Rest>(group_, std::move(work), *device.given, calls_, rests_);
  EnqueuedWork& given = rest->work();
  device.rest = std::move(rest);
  given.enqueue([&] { work_on_arrays(call); }, *device.given);
  return true;
}

// Computes this rank's share in one piece, from the arrays of all ranks into those of all ranks.
void DeviceWay::work_on_arrays(const NodeCall& call) {
  const DeviceCall& device = *call.device;
  Workspace& workspace = *device.workspace;
  SharedArrays& arrays = workspace.arrays();
  const std::size_t bytes = call.bytes();
  std::vector<const std::byte*> inputs(size_);
  std::vector<std::byte*> results(size_);
  for (std::size_t rank = 0; rank < size_; ++rank) {
    const ReadOffer offer = offer_of(rank);
    const SharedPlace input = input_of(offer), result = result_of(offer);
    if (input) inputs[rank] = rank == rank_ ? device.input : arrays.address(rank, input);
    if (result) results[rank] = rank == rank_ ? device.result : arrays.address(rank, result);
  }
  if (call.kind == Kind::kBcast) {
    const auto root = static_cast<std::size_t>(call.root);
    if (rank_ != root) workspace.copy(device.result, inputs[root], bytes);
    return;
  }
  if (call.kind == Kind::kAllgather) {
    for (std::size_t rank = 0; rank < size_; ++rank) {
      std::byte* const block = device.result + rank * bytes;
      if (block != inputs[rank]) workspace.copy(block, inputs[rank], bytes);
    }
    return;
  }
  Range mine{rank_ * call.count, call.count};
  std::vector<void*> targets{device.result};
  if (call.kind == Kind::kAllreduce) {
    mine = range_of_sums(workspace, call.count, rank_, size_, call.element);
    targets.assign(results.begin(), results.end());
    for (void*& target : targets) target = static_cast<std::byte*>(target) + mine.at * call.element;
  }
  if (mine.count == 0) return;
  std::vector<const void*> sources(inputs.begin(), inputs.end());
  for (const void*& source : sources) {
    source = static_cast<const std::byte*>(source) + mine.at * call.element;
  }
  workspace.reduce(device.op, device.dtype, targets, sources, mine.count);
}

Steps DeviceWay::steps(NodeCall call) {
  DeviceCall& device = *call.device;
  Workspace& workspace = *device.workspace;
  SharedArrays& arrays = workspace.arrays();
  std::size_t before = 0;  // steps done before the data move
  bool all_known = true;   // all exported arrays are open, so devices can access them directly
  const bool tells = !workspace.in_use() || any_says(ReadOffer::kUnknown);
  const bool gives = !tells && device.given != nullptr;  // nothing need be ready for that
  while (!gives && !device.before->ready()) co_await Steps::LookAgain{WaitCause::kStream};
  // Given work ends by itself. While there is any, peers' memory cannot be opened.
  while (tells && workspace.has_enqueued_work()) co_await Steps::LookAgain{WaitCause::kDevice};
  // Processes that take turns on a device give it one call at a time: more took longer on an H200.
  const bool one_by_one = workspace.facts().is_of_one_device && workspace.facts().is_used_by_turns;
  while (one_by_one && *rests_ > 0) co_await Steps::LookAgain{WaitCause::kDevice};
  if (tells) {
    const Requested requested = requested_by(device);
    std::memcpy(chunk(rank_, 0), &requested, sizeof requested);
    step_done(1);
    for (std::size_t distance = 1; distance < size_; ++distance) {
      co_await step_of(peer_at(distance), 1);
    }
    Opened found = opened(workspace);
    found.not_now |= requested.not_now;
    std::memcpy(chunk(rank_, 1), &found, sizeof found);
    step_done(2);
    for (std::size_t distance = 1; distance < size_; ++distance) {
      co_await step_of(peer_at(distance), 2);
      Opened theirs;
      std::memcpy(&theirs, chunk(peer_at(distance), 1), sizeof theirs);
      if (found.why[0] == '\0') write(theirs.why, found.why);
      if (found.why_no_arrays[0] == '\0') write(theirs.why_no_arrays, found.why_no_arrays);
      if (found.why_no_programs[0] == '\0') write(theirs.why_no_programs, found.why_no_programs);
      found.not_now |= theirs.not_now;
    }
    before = 2;
    all_known = !found.not_now;
    if (!workspace.in_use() && (found.not_now || found.why[0] != '\0')) {
      if (!found.not_now) workspace.refuse(found.why);
      step_done(3);  // from here on chunks may be overwritten
      for (std::size_t distance = 1; distance < size_; ++distance) {
        co_await step_of(peer_at(distance), 3);
      }
      steps_end(3);
      co_return;
    }
    if (!workspace.in_use()) workspace.use();
    if (all_known && found.why_no_arrays[0] != '\0') {
      arrays.refuse(found.why_no_arrays);
    }
    if (all_known && found.why_no_programs[0] != '\0') {
      arrays.refuse_programs(found.why_no_programs);
      arrays.let_go_of_programs();
    }
    for (const SharedPlace place : {requested.input, requested.result}) {
      if (all_known && place) arrays.set_known(place);
    }
  }
  if (all_known && takes_arrays(call)) {
    arrays.take(device.input_place.is_programs() || device.result_place.is_programs());
    device.is_open = device.begun = true;
    group_.uses(UsedTransport::kDevices);
    ++calls_;
    if (!give(call)) {
      while (!device.before->ready()) co_await Steps::LookAgain{WaitCause::kStream};
      while (*rests_ > 0) co_await Steps::LookAgain{WaitCause::kDevice};  // counts only grow
      group_.tell_arrays_there(calls_);  // the input is complete, and the result may be overwritten
      for (std::size_t distance = 1; distance < size_; ++distance) {
        co_await group_.arrays_there(peer_at(distance), calls_);
      }
      work_on_arrays(call);
      while (!workspace.ready()) co_await Steps::LookAgain{WaitCause::kDevice};
      group_.tell_share_done(calls_);
      for (std::size_t distance = 1; distance < size_; ++distance) {
        co_await group_.share_done(peer_at(distance), calls_);
      }
    }
    steps_end(before);
    device.done = true;
    co_return;
  }
  while (!device.before->ready()) co_await Steps::LookAgain{WaitCause::kStream};
  DevicePieces pieces(call, rank_, size_);
  const std::size_t count = pieces.count(), lag = pieces.lag();
  device.begun = true;
  group_.uses(UsedTransport::kDevicesCopied);
  for (std::size_t time = 0; time < count + lag; ++time) {
    for (std::size_t distance = 1; time > 0 && distance < size_; ++distance) {
      co_await step_of(peer_at(distance), before + time);
    }
    if (time < count) pieces.put(time);
    if (time >= 1 && time <= count) pieces.reduce(time - 1);
    if (time >= lag) pieces.get(time - lag);
    while (!workspace.ready()) co_await Steps::LookAgain{WaitCause::kDevice};
    step_done(before + time + 1);
  }
  // A rank that leaves may free its part.
  for (std::size_t distance = 1; distance < size_; ++distance) {
    co_await step_of(peer_at(distance), before + count + lag);
  }
  steps_end(before + count + lag);
  device.done = true;
}

}  // namespace gradred
