#include "engine/execution.h"

#include "base/copy_bytes.h"
#include "base/errors.h"
#include "reduce/wire.h"

namespace gradred {

Execution::Execution(const Schedule& schedule, std::unique_ptr<Channel> channel, std::size_t count,
                     const Reduction& reduction, Memory memory)
    : schedule_(schedule),
      channel_(std::move(channel)),
      partition_{count, schedule.chunks},
      reduction_(reduction),
      element_(reduction.element()),
      scratch_(memory, schedule.scratch_slots * partition_.longest() * element_),
      coded_slot_(schedule.coded_slots == 0 ? 0 : wire_bytes(schedule.wire, partition_.longest())),
      coded_(memory, schedule.coded_slots * coded_slot_),
      stream_(memory) {}

Execution::~Execution() {
  if (active_) abandon();
}

void Execution::start(void* work, const void* input, std::uint32_t tag, const Signature& signature,
                      Stream* before) {
  check(!active_, "an execution was started twice");
  work_ = static_cast<std::byte*>(work);
  // Nothing writes to the input: validate() has checked the steps.
  input_ = static_cast<std::byte*>(const_cast<void*>(input));
  before_ = before;
  round_ = 0;
  steps_ = nullptr;
  active_ = true;
  channel_->begin(tag, signature);
  if (memory_is_ready() && schedule_.rounds.size() > 0) start_round();
}

bool Execution::advance() {
  for (;;) {
    if (steps_ != nullptr) {
      if (!channel_->test()) return false;
      finish_messages();
    }
    if (!memory_is_ready()) return false;
    if (round_ == schedule_.rounds.size()) break;
    start_round();
  }
  active_ = false;
  return true;
}

bool Execution::drain() {
  if (active_ && !(channel_->drain() && stream_.ready())) return false;
  active_ = false;
  return true;
}

bool Execution::abandon() noexcept {
  const bool done = stream_.finish();
  const bool quiet = channel_->abandon() && done;
  if (!quiet) scratch_.keep_for_ever(), coded_.keep_for_ever();  // it is never reused
  active_ = false;
  return quiet;
}

bool Execution::memory_is_ready() {
  if (before_ != nullptr) {
    if (!before_->ready()) return false;
    before_ = nullptr;
  }
  return stream_.ready();
}

void Execution::start_round() {
  steps_ = &schedule_.rounds.at(round_, room_);
  for (const Step& step : *steps_) {  // receives first, so that messages find their buffers
    if (step.kind == StepKind::kRecv) {
      channel_->recv(step.peer, address(step.target), bytes(step.target));
    }
  }
  for (const Step& step : *steps_) {
    if (step.kind == StepKind::kSend) {
      channel_->send(step.peer, address(step.source), bytes(step.source));
    }
  }
}

// Begins the local steps, which may still run after the return: memory_is_ready() returns true once
// they are done.
void Execution::finish_messages() {
  for (const Step& step : *steps_) {
    if (step.kind == StepKind::kReduce) reduce(step);
    if (step.kind == StepKind::kCopy) copy(step);
  }
  steps_ = nullptr;
  ++round_;
}

void Execution::reduce(const Step& step) {
  std::byte *const target = address(step.target), *const operand = address(step.operand),
                   *const source = address(step.source);
  if (step.source.buffer != BufferId::kCoded) {
    return stream_.reduce(reduction_, target, operand, source, length(step.target));
  }
  if (operand != target) copy_bytes(target, operand, bytes(step.target));
  decode_wire(schedule_.wire, source, length(step.target), reinterpret_cast<float*>(target), true);
}

void Execution::copy(const Step& step) {
  std::byte *const target = address(step.target), *const source = address(step.source);
  const std::size_t count = length(step.target);
  if (step.target.buffer == BufferId::kCoded) {
    encode_wire(schedule_.wire, reinterpret_cast<const float*>(source), count, target);
  } else if (step.source.buffer == BufferId::kCoded) {
    decode_wire(schedule_.wire, source, count, reinterpret_cast<float*>(target), false);
  } else {
    stream_.copy(target, source, count * element_);
  }
}

std::byte* Execution::address(const Span& span) const {
  if (span.buffer == BufferId::kScratch) {
    return scratch_.data() + span.slot * partition_.longest() * element_;
  }
  if (span.buffer == BufferId::kCoded) return coded_.data() + span.slot * coded_slot_;
  const std::size_t begin = partition_.begin(span.first);
  if (span.buffer == BufferId::kWork) return work_ + begin * element_;
  return input_ + (span.slot * partition_.count + begin) * element_;
}

std::size_t Execution::bytes(const Span& span) const {
  const bool is_coded = span.buffer == BufferId::kCoded;
  return is_coded ? wire_bytes(schedule_.wire, length(span)) : length(span) * element_;
}

}  // namespace gradred
