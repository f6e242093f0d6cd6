#include "engine/execution.h"

#include <cstring>

#include "base/errors.h"

namespace gradred {

Execution::Execution(const Schedule& schedule, std::unique_ptr<Channel> channel, std::size_t count,
                     std::size_t element, const ReduceFunctions* reduce)
    : schedule_(schedule),
      channel_(std::move(channel)),
      partition_{count, schedule.chunks},
      element_(element),
      reduce_(reduce),
      scratch_(schedule.scratch_slots * partition_.longest() * element) {}

Execution::~Execution() {
  if (active_) abandon();
}

void Execution::start(void* work, const void* input, std::uint32_t tag,
                      const Signature& signature) {
  check(!active_, "an execution was started twice");
  work_ = static_cast<std::byte*>(work);
  input_ = static_cast<std::byte*>(const_cast<void*>(input));  // validate(): nothing writes there
  round_ = 0;
  active_ = true;
  channel_->begin(tag, signature);
  start_round();
}

bool Execution::advance() {
  while (round_ < schedule_.rounds.size()) {
    if (!channel_->test()) return false;
    finish_round();
    ++round_;
    start_round();
  }
  active_ = false;
  return true;
}

bool Execution::drain() {
  if (active_ && !channel_->drain()) return false;
  active_ = false;
  return true;
}

void Execution::abandon() noexcept {
  // Where the transport may still write there, the memory is given to nobody else.
  if (!channel_->abandon()) static_cast<void>(new std::vector<std::byte>(std::move(scratch_)));
  active_ = false;
}

void Execution::start_round() {
  if (round_ == schedule_.rounds.size()) return;
  steps_ = &schedule_.rounds.at(round_, room_);
  for (const Step& step : *steps_) {  // receives first: they find their buffers
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

void Execution::finish_round() {
  for (const Step& step : *steps_) {
    if (step.kind == StepKind::kReduce) {
      reduce_->pair(address(step.target), address(step.operand), address(step.source),
                    bytes(step.target) / element_);
    } else if (step.kind == StepKind::kCopy && bytes(step.target) > 0) {  // null is no memcpy's
      std::memcpy(address(step.target), address(step.source), bytes(step.target));
    }
  }
}

std::byte* Execution::address(const Span& span) const {
  if (span.buffer == BufferId::kScratch) {
    return const_cast<std::byte*>(scratch_.data()) + span.slot * partition_.longest() * element_;
  }
  std::byte* const begin = span.buffer == BufferId::kWork ? work_ : input_;
  return begin + partition_.begin(span.first) * element_;
}

std::size_t Execution::bytes(const Span& span) const {
  return partition_.length(span.first, span.chunks) * element_;
}

}  // namespace gradred
