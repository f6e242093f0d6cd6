#include "testing/faulty.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::array<std::pair<std::string_view, FaultKind>, 6> kFaultKinds = {{
    {"drop", FaultKind::kDrop},
    {"delay", FaultKind::kDelay},
    {"corrupt", FaultKind::kCorrupt},
    {"die", FaultKind::kDie},
    {"stop", FaultKind::kStop},
    {"fail", FaultKind::kFail},
}};

[[noreturn]] void refuse(std::string_view text) {
  throw UsageError("the fault '" + std::string(text) +
                   "' should read rank:operation:round:kind[:milliseconds]");
}

// Returns the text before the next colon, and removes both.
std::string_view next_field(std::string_view& text) {
  const std::size_t end = std::min(text.find(':'), text.size());
  const std::string_view field = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return field;
}

template <class Number>
Number number(std::string_view text, std::string_view field) {
  Number found = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), found);
  if (error != std::errc() || end != field.data() + field.size()) refuse(text);
  return found;
}

template <class Number>
std::optional<Number> place(std::string_view text, std::string_view& rest) {
  const std::string_view field = next_field(rest);
  return field == "*" ? std::nullopt : std::optional(number<Number>(text, field));
}

class FaultyChannel : public Channel {
 public:
  FaultyChannel(std::unique_ptr<Channel> inner, Memory memory, const FaultSpec& spec,
                std::atomic<std::uint64_t>& operations)
      : spec_(spec),
        operations_(operations),
        memory_(memory),
        stream_(memory),
        inner_(std::move(inner)) {}

  void begin(std::uint32_t tag, const Signature& signature) override {
    operation_ = operations_.fetch_add(1, std::memory_order_relaxed);
    begin_round(0);
    state_ = State::kWell;
    inner_->begin(tag, signature);
  }

  void send(int peer, const void* data, std::size_t bytes) override {
    strike();
    if (state_ != State::kWell || hit(FaultKind::kDrop)) return;
    if (hit(FaultKind::kDelay)) {
      if (late_.empty()) due_ns_ = now_ns() + std::uint64_t{spec_.milliseconds} * 1'000'000;
      late_.push_back({peer, data, bytes});
    } else if (hit(FaultKind::kCorrupt) && bytes > 0) {
      due_ns_ = 0;
      late_.push_back({peer, corrupted(data, bytes), bytes});
      send_late();
    } else {
      inner_->send(peer, data, bytes);
    }
  }

  void recv(int peer, void* data, std::size_t bytes) override {
    strike();
    if (state_ == State::kWell) inner_->recv(peer, data, bytes);
  }

  bool test() override {
    strike();
    if (state_ == State::kDead) throw PeerLost("this rank died of a fault that was asked for");
    const bool complete = inner_->test();
    if (state_ == State::kStopped || !send_late() || !complete) return false;
    copies_.clear();
    begin_round(round_ + 1);
    return true;
  }

  bool drain() override {
    late_.clear();
    return inner_->drain() && stream_.ready();
  }

  bool abandon() noexcept override {
    const bool done = stream_.finish();
    const bool quiet = inner_->abandon() && done;
    late_.clear();
    if (!quiet) {
      for (Allocation& copy : copies_) copy.keep_for_ever();
    }
    copies_.clear();
    return quiet;
  }

 private:
  enum class State : std::uint8_t { kWell, kDead, kStopped };
  struct Message {
    int peer;
    const void* data;
    std::size_t bytes;
  };

  bool hit(FaultKind kind) const {
    return spec_.kind == kind && spec_.operation.value_or(operation_) == operation_ &&
           spec_.round.value_or(round_) == round_;
  }

  void begin_round(std::uint64_t round) {
    round_ = round;
    untouched_ = true;
  }

  // Dies, stops or fails if this is the round. Called when the round is first used and not when the
  // previous one ends, since the last round has no next one.
  void strike() {
    if (!std::exchange(untouched_, false)) return;
    if (hit(FaultKind::kFail)) throw TransportError("a message failed, as was asked for");
    if (hit(FaultKind::kDie)) state_ = State::kDead;
    if (hit(FaultKind::kStop)) state_ = State::kStopped;
  }

  // Sends the delayed messages that are due. Returns true only if none were delayed before this
  // call, since messages that have just been sent are not complete.
  bool send_late() {
    if (late_.empty()) return true;
    if (now_ns() < due_ns_ || !stream_.ready()) return false;
    for (const Message& message : late_) inner_->send(message.peer, message.data, message.bytes);
    late_.clear();
    return false;
  }

  // Returns the address of a copy with one byte inverted. The copy is complete once the stream is
  // ready.
  const void* corrupted(const void* data, std::size_t bytes) {
    static constexpr std::byte kOnes{0xff};
    static const Reduction inversion = Reduction::of(Op::kBxor, DType::kUInt8);
    std::byte* const copy = copies_.emplace_back(memory_, bytes + 1).data();
    stream_.copy(copy, data, bytes);
    stream_.copy(copy + bytes, &kOnes, 1);
    stream_.reduce(inversion, copy + bytes / 2, copy + bytes / 2, copy + bytes, 1);
    return copy;
  }

  const FaultSpec spec_;
  std::atomic<std::uint64_t>& operations_;
  std::uint64_t operation_ = 0;
  std::uint64_t round_ = 0;
  bool untouched_ = true;  // no call in this round yet
  State state_ = State::kWell;
  std::uint64_t due_ns_ = 0;
  std::vector<Message> late_;
  const Memory memory_;
  Stream stream_;
  std::vector<Allocation> copies_;        // data of messages in flight
  const std::unique_ptr<Channel> inner_;  // last: until it is destroyed, peers may read copies_
};

}  // namespace

FaultSpec parse_fault(std::string_view text) {
  std::string_view rest = text;
  FaultSpec spec;
  spec.rank = place<int>(text, rest);
  spec.operation = place<std::uint64_t>(text, rest);
  spec.round = place<std::uint64_t>(text, rest);
  const auto* const kind =
      std::ranges::find(kFaultKinds, next_field(rest), &decltype(kFaultKinds)::value_type::first);
  if (kind == kFaultKinds.end()) refuse(text);
  spec.kind = kind->second;
  if (spec.kind == FaultKind::kDelay) spec.milliseconds = number<std::uint32_t>(text, rest);
  return spec;
}

std::unique_ptr<Channel> FaultyTransport::open(Memory memory) {
  std::unique_ptr<Channel> channel = inner_.open(memory);
  if (spec_.rank.value_or(rank()) != rank()) return channel;
  return std::make_unique<FaultyChannel>(std::move(channel), memory, spec_, operations_);
}

}  // namespace gradred
