#include "families/messages/hosted.h"

#include <utility>

#include "base/errors.h"

namespace gradred {

HostedOperation::HostedOperation(std::shared_ptr<const MessageParts> parts, const Call& call,
                                 Plan plan)
    : CommOperation(std::move(parts), call, std::move(plan)) {
  if (group() != nullptr) execution_.emplace(*group());
}

void HostedOperation::begin(std::uint64_t number, const std::shared_ptr<CommOperation>& self) {
  CommOperation::begin(number, self);
  if (group() != nullptr) stand_in_line(self);
}

void HostedOperation::bind(const Call& call) {
  done_on_host_ = 0;
  under_way_ = false;
  CommOperation::bind(call);
}

// ---- the queue ----------------------------------------------------------------------------------

// While a call blocks, its communicator gets no other call.
void HostedOperation::stand_in_line(const std::shared_ptr<CommOperation>& self) {
  in_line_ = true;  // operations behind it may advance it at once
  alone_ = kept() && !parts_->node_path.queue().any();
  if (!alone_) parts_->node_path.queue().add(self);
}

void HostedOperation::step_out_of_line() noexcept {
  if (!in_line_.exchange(false) || alone_) return;
  const auto lock = parts_->node_path.queue().lock();
  parts_->node_path.queue().remove(this);
}

// Advances the operations before it.
bool HostedOperation::is_its_turn() {
  if (alone_) return true;
  while (true) {
    const std::shared_ptr<StartedOperation> first = parts_->node_path.queue().first();
    if (first.get() == this) return true;
    // It may have left the queue without having ended.
    if (!first->advance() && parts_->node_path.queue().first() == first) return false;
  }
}

// ---- on the host --------------------------------------------------------------------------------

bool HostedOperation::on_host(const NodeCall& call) {
  if (group() == nullptr) return true;
  if (!is_its_turn()) return false;
  if (!std::exchange(under_way_, true)) execution_->start(call);
  try {
    if (!advance_on_host()) return false;
  } catch (const UsageError&) {  // all ranks of the host leave it
    step_out_of_line();
    throw;
  }
  if (!execution_->leads()) end_on_host();
  return true;
}

void HostedOperation::pass_on() {
  if (group() == nullptr || !execution_->leads()) return;
  {
    const NodeQueue::Lock lock = alone_ ? NodeQueue::Lock() : parts_->node_path.queue().lock();
    execution_->pass_on();
  }
  end_on_host();
}

void HostedOperation::end_on_host() {
  under_way_ = false;
  if (++done_on_host_ == operations_on_host_) step_out_of_line();
}

bool HostedOperation::advance_on_host() {
  const NodeQueue::Lock lock = alone_ ? NodeQueue::Lock() : parts_->node_path.queue().try_lock();
  if (!alone_ && !lock.owns_lock()) return false;
  try {
    if (execution_->advance()) return true;
  } catch (const PeerLost& lost) {
    throw PeerLost(lost.what());  // not may_shrink: several hosts share no memory
  }
  if (!awaits_messages()) await_host();
  return false;
}

void HostedOperation::await_host() { stop_at({Progress::State::kAwaits, execution_->awaited()}); }

// After a refusal: this rank ends what it has announced on the host, and refuses what would come
// next.
bool HostedOperation::leave_host() {
  while (in_line_) {
    if (!is_its_turn()) return false;
    if (!refusing_ && !(under_way_ && execution_->announced())) {
      execution_->start_refusal(refusal());
      refusing_ = under_way_ = true;
    }
    try {
      if (!advance_on_host()) return false;
    } catch (const UsageError&) {
      step_out_of_line();
    }
    if (refusing_) step_out_of_line();
    end_on_host();
  }
  return true;
}

// ---- an operation -------------------------------------------------------------------------------

bool HostedOperation::carry_out() {
  if (done_on_host_ == 0 && !on_host({.signature = scheduled_.signature()})) return false;
  return CommOperation::carry_out();
}

bool HostedOperation::clear_away() {
  const bool host = leave_host();
  stop_at({Progress::State::kPolls, {}});  // peers send more, by messages
  return CommOperation::clear_away() && host;
}

void HostedOperation::on_end(bool well) noexcept {
  step_out_of_line();
  CommOperation::on_end(well);
}

std::string HostedOperation::waits_for() const {
  std::string text = CommOperation::waits_for();
  const auto lock = parts_->node_path.queue().lock();
  if (in_line_ && execution_->entered()) text += "; on this host: " + group()->missing();
  return text;
}

}  // namespace gradred
