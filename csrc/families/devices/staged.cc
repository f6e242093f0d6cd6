#include "families/devices/staged.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "families/memory/scaling.h"
#include "memory/stream_order.h"

namespace gradred {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // copied at a time
// With a stream order, all copies of a call are given to the device at once, each with what it
// waits for or signals. A stream takes about a thousand such entries. Then the driver makes the
// thread that adds more wait, with a lock: for peers, before this rank's own part has begun.
constexpr std::size_t kMostCopies = 32;

struct Lengths {  // in bytes
  std::size_t input, result;
  std::size_t room;   // of the caller's buffer for the result
  std::size_t place;  // offset of this rank's input in it, for calls in place
  // If input and result are in device memory, one vector on the host serves both, except for
  // reduce-scatters, whose input is longer.
  bool one_vector;

  Lengths(const Call& call, int rank, int size) {
    const std::size_t one = call.count * size_of(call.dtype);
    const PlaceInCall at{rank, size, call.root};
    const KindInfo& kind = info_of(call.kind);
    input = one * given_counts(call.kind, at);
    result = one * got_counts(call.kind, at);
    room = call.in_place() ? std::max(input, result) : result;
    place = kind.input == Part::kOwnBlock ? one * static_cast<std::size_t>(rank) : 0;
    one_vector = call.in_place() || (!call.out.memory.is_host() && place + input <= room);
    const bool is_there = kind.input == Part::kRoots && kind.result == Part::kVector;
    if (is_there && call.root == rank) result = 0;  // a broadcast's root has it
  }
};

std::size_t piece_of(const Call& call, const Lengths& bytes) {
  if (call.stream_order() == nullptr) return kPiece;
  constexpr std::size_t kAll = kMostCopies * kPiece;
  const std::size_t longest = std::max(bytes.input, bytes.result);
  return std::max<std::size_t>((longest + kAll - 1) / kAll, 1) * kPiece;
}

std::shared_ptr<const CallOrder> after(const std::shared_ptr<Stream>& stream) {
  return std::make_shared<const CallOrder>(CallOrder{.before = stream});
}

// Finds the arrays that peers may reach where they lie. The input of a reduce-scatter in place is
// none of them: the result is written where peers would read. Neither are arrays that kernels
// cannot read.
void find_places(DeviceCall& device, const Lengths& bytes, const Call& call) {
  const bool scatters = call.kind == Kind::kReduceScatterBlock;
  const bool reduces = gradred::reduces(call.kind);
  if (reduces && call.op == Op::kPremul) return;  // the input is scaled while it is moved
  const auto array = [&](const std::byte* at, std::size_t length, bool wanted) {
    const bool aligned =
        !reduces || reinterpret_cast<std::uintptr_t>(at) % size_of(call.dtype) == 0;
    return wanted && aligned ? SharedArrays::Array{at, length} : SharedArrays::Array();
  };
  const auto input = array(device.input, bytes.input, !(scatters && call.in_place()));
  const auto result = array(device.result, bytes.result, call.kind == Kind::kAllreduce);
  const SharedArrays::Places found = device.workspace->arrays().find(input, result);
  device.input_place = found.input;
  device.result_place = found.result;
}

}  // namespace

// ---- a call's host memory -----------------------------------------------------------------------

bool Staging::is_long(const Call& call) { return call.count * size_of(call.dtype) >= 2 * kPiece; }

std::array<std::size_t, 2> Staging::host_bytes(const Call& call, int rank, int size) {
  const Lengths bytes(call, rank, size);
  const bool has_input = !call.input_memory().is_host() && !bytes.one_vector;
  return {call.out.memory.is_host() ? 0 : bytes.room, has_input ? bytes.input : 0};
}

HostAllocation Staging::host_memory(DeviceMemory& device, std::size_t bytes) const {
  StreamOrder* const stream = call_.stream_order();
  return stream != nullptr ? stream->take_host() : HostAllocation(device, bytes);
}

Staging::Staging(const Call& call, int rank, int size)
    : call_(call),
      rank_(rank),
      size_(size),
      piece_(piece_of(call, Lengths(call, rank, size))),
      on_host_(call) {
  check(call.order != nullptr, "a call on a device's memory says what comes before it");
  before_ = call.order->before;
  on_host_.in.memory = on_host_.out.memory = Memory();
  const Memory from = call.input_memory();
  if (before_ == nullptr) {
    before_ = std::make_shared<Stream>(from.is_host() ? call.out.memory : from);
  }
}

Staging::Staging(const Call& call, int rank, int size, bool flows, Workspace* workspace)
    : Staging(call, rank, size) {
  if (workspace == nullptr) {
    to_host(flows);
    return;
  }
  const bool in_place = call.in_place() || call.kind == Kind::kBcast;
  const auto* const given = static_cast<const std::byte*>(in_place ? call.out.data : call.in.data);
  device_.emplace();
  device_->workspace = workspace;
  device_->before = before_.get();
  device_->input = given + (in_place ? Lengths(call, rank, size).place : 0);
  device_->result = static_cast<std::byte*>(call.out.data);
  device_->op = call.op;
  device_->dtype = call.dtype;
  device_->factor = call.factor;
  device_->given = call.order->given.get();
  find_places(*device_, Lengths(call, rank, size), call);
}

void Staging::to_host(const void*& send, void*& recv) {
  device_.reset();
  to_host(true);
  scales_ = call_.op == Op::kPremul && !marks_.empty();
  send = on_host_.in.data;
  recv = on_host_.out.data;
}

void Staging::to_host(bool flows) {
  const Call& call = call_;
  const Lengths bytes(call, rank_, size_);
  const Memory from = call.input_memory(), to = call.out.memory;
  on_host_.order = flows ? nullptr : after(before_);
  StreamOrder* const stream = call.stream_order();
  const bool own = flows || (to != from && !from.is_host());
  if (!to.is_host() && own && stream == nullptr) result_.emplace(to);
  const auto [room, input] = host_bytes(call, rank_, size_);
  if (room > 0) room_ = host_memory(*to.device(), room);
  if (input > 0) input_ = host_memory(*from.device(), input);
  if (!to.is_host()) {
    on_host_.out.data = room_.data();
    result_bytes_ = bytes.result;
  }
  if (!from.is_host()) {
    const bool in_place = call.in_place();
    const auto* const given =
        static_cast<const std::byte*>(in_place ? call.out.data : call.in.data);
    const std::byte* const source = in_place ? given + bytes.place : given;
    std::byte* target = room_.data() + bytes.place;
    if (bytes.one_vector) {
      on_host_.in.data = kInPlace;
    } else {
      on_host_.in.data = target = input_.data();
    }
    copy_input(target, source, bytes.input, flows);
  }
  if (stream != nullptr) {
    const std::size_t piece = flows ? piece_ : std::max<std::size_t>(result_bytes_, 1);
    result_.emplace(stream->result(call.out.data, room_.data(), result_bytes_, piece));
  }
}

void Staging::copy_input(std::byte* target, const std::byte* source, std::size_t bytes,
                         bool flows) {
  const std::size_t piece = flows ? piece_ : bytes;
  for (std::size_t at = 0; at < bytes; at += piece) {
    input_stream().copy(target + at, source + at, std::min(piece, bytes - at));
    if (flows) marks_.push_back(input_stream().mark());
  }
}

// Without pieces, the input is there when the work that comes before the call is done.
bool Staging::has_input(std::size_t end) {
  if (end == 0) return true;
  if (scales_) return has_scaled_input();
  if (marks_.empty()) return input_stream().ready();
  const std::size_t last = std::min((end - 1) / piece_, marks_.size() - 1);
  return input_stream().has_passed(marks_[last]);
}

// A factor is applied to all of the input at once.
bool Staging::has_scaled_input() {
  if (!input_stream().has_passed(marks_.back())) return false;
  std::byte* const input = input_.data() != nullptr ? input_.data() : room_.data();
  scale_input(call_, input, call_.count * given_counts(call_.kind, {.size = size_}));
  scales_ = false;
  return true;
}

// An average is divided at the end, when the whole sum is there.
void Staging::has_result(std::size_t end) {
  if (call_.op == Op::kAvg || end > result_bytes_ || end < copied_ + piece_) return;
  auto* const target = static_cast<std::byte*>(call_.out.data);
  result_stream().copy(target + copied_, room_.data() + copied_, end - copied_);
  copied_ = end;
}

void Staging::copy_result() {
  if (copied_ == result_bytes_) return;  // also if the result is in device memory already
  auto* const target = static_cast<std::byte*>(call_.out.data);
  result_stream().copy(target + copied_, room_.data() + copied_, result_bytes_ - copied_);
  copied_ = result_bytes_;
}

Staging::~Staging() {
  if (!is_quiet()) keep_host_memory();
}

bool Staging::is_quiet() noexcept {
  try {
    return (has_rest() || input_is_there()) && result_is_there();
  } catch (const std::exception&) {
    return false;
  }
}

void Staging::keep_host_memory() noexcept {
  input_.keep_for_ever();
  room_.keep_for_ever();
}

void Staging::give_up(const std::exception_ptr& reason) noexcept {
  if (has_rest()) device_->rest->give_up(reason);
}

bool Staging::abandon(bool host_memory_is_free) noexcept {
  if (StreamOrder* const stream = call_.stream_order()) {  // no thread waits for it
    stream->release();
    const bool quiet = is_quiet();
    if (!quiet || !host_memory_is_free) keep_host_memory();
    return quiet;
  }
  if (has_rest()) {  // peers' devices may use the arrays at any later time
    device_->workspace->keep_all();
    device_->rest.reset();  // lets the device go on
    return false;
  }
  if (device_ && device_->begun && !device_->done) {
    return device_->workspace->abandon() && !device_->is_open;
  }
  const bool quiet = input_stream().settle() && result_stream().settle();
  if (!quiet || !host_memory_is_free) keep_host_memory();
  return quiet;
}

void Staging::rest() noexcept {
  before_->rest();
  if (result_) result_->rest();
}

// ---- in flight ----------------------------------------------------------------------------------

StagedOperation::StagedOperation(const Call& call, int rank, int size, bool flows,
                                 Workspace* workspace, const Make& make)
    : staging_(std::make_shared<Staging>(call, rank, size, flows, workspace)),
      is_left_(call.stream_order() != nullptr) {
  Call on_host = staging_->on_host();
  if (flows) on_host.order = std::make_shared<const CallOrder>(CallOrder{.flow = staging_});
  inner_ = make(on_host);
}

StagedOperation::StagedOperation(const Call& call, int rank, int size, const Make& make,
                                 ReadsAtOnce)
    : staging_(std::make_shared<Staging>(call, rank, size, false)),
      is_left_(call.stream_order() != nullptr) {
  while (!staging_->input_is_there()) sched_yield();
  Call on_host = staging_->on_host();
  on_host.order = nullptr;
  inner_ = make(on_host);
}

std::string StagedOperation::waits_for() const {
  return inner_->ended() ? "its result to be copied to the device" : inner_->waits_for();
}

bool StagedOperation::step() {
  if (!copies_result_) {
    if (!advance_inner()) return false;
    staging_->copy_result();
    copies_result_ = true;
  }
  stop_at({Progress::State::kPolls, {}, WaitCause::kDevice});
  return staging_->result_is_there();
}

void StagedOperation::give_up(const std::exception_ptr& reason) noexcept {
  inner_->abandon(reason);
  staging_->give_up(reason);
  withdraw();
}

// The inner operation has ended: it has failed, or its result could not be copied.
void StagedOperation::withdraw() noexcept {
  holds_memory_ = !staging_->abandon(!inner_->holds_memory());
}

void StagedOperation::on_end(bool well) noexcept {
  staging_->rest();
  StartedOperation::on_end(well);
}

}  // namespace gradred
