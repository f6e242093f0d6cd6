#include "transport/faulty.h"

#include <array>
#include <charconv>
#include <csignal>
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
constexpr std::uint32_t kLongestDelay = 3'600'000;  // ms: an hour

// For messages: the result is short and printable whatever the input.
std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text.substr(0, 60)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > 60 ? "...'" : "'");
}

[[noreturn]] void refuse(std::string_view text, const std::string& why) {
  throw UsageError("the fault " + quoted(text) + " " + why +
                   "; it should read rank:operation:round:kind[:milliseconds] with numbers or * "
                   "in the first three places, for example 2:0:1:drop or *:*:0:delay:20");
}

template <class Number>
bool parse_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

template <class Number>
std::optional<Number> parse_place(std::string_view text, std::string_view field, const char* name) {
  if (field == "*") return std::nullopt;
  Number number = 0;
  if (!parse_number(field, number) || field.front() == '-') {
    refuse(text, std::string("has ") + quoted(field) + " where the " + name +
                     " should be a number from 0 on, or *");
  }
  return number;
}

FaultKind parse_kind(std::string_view text, std::string_view field) {
  for (const auto& [name, kind] : kFaultKinds) {
    if (field == name) return kind;
  }
  refuse(text, "is of the kind " + quoted(field) +
                   ", but there are only drop, delay, corrupt, die, stop and fail");
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> fields;
  for (std::size_t colon = text.find(':'); colon != std::string_view::npos;
       colon = text.find(':')) {
    fields.push_back(text.substr(0, colon));
    text.remove_prefix(colon + 1);
  }
  fields.push_back(text);
  return fields;
}

class FaultyChannel : public Channel {
 public:
  FaultyChannel(std::unique_ptr<Channel> inner, Memory memory, const FaultSpec& spec, Victim victim,
                std::atomic<std::uint64_t>& operations)
      : spec_(spec),
        victim_(victim),
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
    if (!hit(FaultKind::kDie) && !hit(FaultKind::kStop)) return;
    if (victim_ == Victim::kProcess) {
      std::raise(spec_.kind == FaultKind::kDie ? SIGKILL : SIGSTOP);
    } else {
      state_ = spec_.kind == FaultKind::kDie ? State::kDead : State::kStopped;
    }
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
  const Victim victim_;
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
  const std::vector<std::string_view> fields = split(text);
  if (fields.size() < 4 || fields.size() > 5) {
    refuse(text, "has " + std::to_string(fields.size()) + " fields instead of 4 or 5");
  }
  FaultSpec spec;
  spec.rank = parse_place<int>(text, fields[0], "rank");
  spec.operation = parse_place<std::uint64_t>(text, fields[1], "operation");
  spec.round = parse_place<std::uint64_t>(text, fields[2], "round");
  spec.kind = parse_kind(text, fields[3]);
  const bool has_time = fields.size() == 5;
  if (has_time != (spec.kind == FaultKind::kDelay)) {
    refuse(text, has_time ? "has milliseconds, which only delay takes"
                          : "delays, but does not say by how many milliseconds");
  }
  if (has_time &&
      (!parse_number(fields[4], spec.milliseconds) || spec.milliseconds > kLongestDelay)) {
    refuse(text, "delays by " + quoted(fields[4]) + ", which is not a number from 0 to 3600000");
  }
  return spec;
}

std::unique_ptr<Channel> FaultyTransport::open(Memory memory) {
  std::unique_ptr<Channel> channel = inner_.open(memory);
  if (spec_.rank.value_or(rank()) != rank()) return channel;
  return std::make_unique<FaultyChannel>(std::move(channel), memory, spec_, victim_, operations_);
}

}  // namespace gradred
