#include "engine/execution.h"

#include "base/errors.h"

namespace gradred {

Execution::Execution(const Schedule& schedule, std::unique_ptr<Channel> channel, std::size_t count,
                     const Reduction& reduction, Memory memory)
    : schedule_(schedule),
      channel_(std::move(channel)),
      partition_{count, schedule.chunks},
      reduction_(reduction),
      element_(reduction.element()),
      scratch_(memory, schedule.scratch_slots * partition_.longest() * element_),
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
  if (!quiet) scratch_.keep_for_ever();  // it is never reused
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
    if (step.kind == StepKind::kReduce) {
      stream_.reduce(reduction_, address(step.target), address(step.operand), address(step.source),
                     bytes(step.target) / element_);
    } else if (step.kind == StepKind::kCopy) {
      stream_.copy(address(step.target), address(step.source), bytes(step.target));
    }
  }
  steps_ = nullptr;
  ++round_;
}

std::byte* Execution::address(const Span& span) const {
  if (span.buffer == BufferId::kScratch) {
    return scratch_.data() + span.slot * partition_.longest() * element_;
  }
  const std::size_t begin = partition_.begin(span.first);
  if (span.buffer == BufferId::kWork) return work_ + begin * element_;
  return input_ + (span.slot * partition_.count + begin) * element_;
}

std::size_t Execution::bytes(const Span& span) const {
  return partition_.length(span.first, span.chunks) * element_;
}

}  // namespace gradred
