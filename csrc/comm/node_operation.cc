#include "comm/node_operation.h"

#include <algorithm>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/set_up.h"

namespace gradred {

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, Purpose purpose)
    : comm_(std::move(comm)), purpose_(purpose), execution_(*comm_->node_) {}

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, const Call& call)
    : NodeOperation(std::move(comm), Purpose::kCall) {
  call_ = call;
  const bool blocks = call.kind == Kind::kReduceScatterBlock;
  const std::size_t ranks = blocks ? static_cast<std::size_t>(comm_->size()) : 1;
  bytes_ = ranks * call.count * size_of(call.dtype);
  NodeCall made = node_call(call);
  if (call.op == Op::kPremul) made.send = scaled_input(call, comm_->size(), scaled_);
  execution_.start(made);
}

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, const Signature& agreement)
    : NodeOperation(std::move(comm), Purpose::kAgreement) {
  execution_.start({.signature = agreement});
}

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, std::string_view refusal)
    : NodeOperation(std::move(comm), Purpose::kRefusal) {
  execution_.start_refusal(std::string(refusal));
}

std::string NodeOperation::waiter() const { return comm_->own_name(); }

std::string NodeOperation::waits_for() const {
  const std::lock_guard lock(comm_->node_mutex_);
  if (!execution_.announced()) return "an operation that waits for others before it";
  return comm_->node_->missing();
}

bool NodeOperation::is_first_to_wait() const {
  const std::lock_guard lock(comm_->node_mutex_);
  return execution_.announced() && comm_->node_->is_first_to_wait();
}

bool NodeOperation::spins() const { return comm_->spins(); }

bool NodeOperation::step() {
  // Its end takes a lock that may be held while gradred calls the MPI.
  if (purpose_ == Purpose::kAgreement && caller() == Caller::kInMpi) return false;
  if (!finish_those_before()) return false;
  const std::unique_lock lock(comm_->node_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    stop_at({Progress::State::kTaken, {}});
    return false;
  }
  if (comm_->started_.front().get() != this) return false;
  if (!begun_ && !begin()) return false;
  if (!execution_.advance()) {
    if (caller() == Caller::kSleepy) execution_.expect_sleepers();
    stop_at({Progress::State::kAwaits, execution_.awaited()});
    return false;
  }
  take_result();
  leave();
  return true;
}

// This one waits for what the first of them waits for.
bool NodeOperation::finish_those_before() {
  while (true) {
    std::shared_ptr<NodeOperation> first;
    {
      const std::lock_guard lock(comm_->node_mutex_);
      first = comm_->started_.front();
    }
    if (first.get() == this) return true;
    const Progress progress = first->advance(caller());
    if (progress) continue;
    stop_at(progress);
    return false;
  }
}

// To start a call is to announce it: what takes longer is left to who waits, or to the engine.
bool NodeOperation::begin() {
  begun_ = true;
  if (observation_ != nullptr) comm_->node_->arrive(observation_->start_ns());
  if (execution_.is_short()) return true;
  begun_ = execution_.begin();  // not, where a refused one before it has to end first
  return false;
}

void NodeOperation::take_result() {
  if (purpose_ == Purpose::kAgreement) number_ = comm_->next_number();  // on all ranks in one order
  if (purpose_ == Purpose::kCall) scale_result(call_, call_.recv, call_.count, comm_->size());
  if (observation_ != nullptr) observation_->look(*comm_->node_);
}

// Its number is taken on the peers: nothing that follows would match. A refusal that has not been
// announced fails nothing: peers that come to this call find that the rank has left.
void NodeOperation::give_up(const std::exception_ptr& reason) noexcept {
  if (purpose_ != Purpose::kRefusal) {
    FailureReport report = report_of(reason);
    report.text = comm_->own_name() + " gave up an operation that it had started: " + report.text;
    comm_->node_->poison(report);
  }
  withdraw();
}

void NodeOperation::withdraw() noexcept {
  const std::lock_guard lock(comm_->node_mutex_);
  leave();
}

void NodeOperation::on_end(bool well) noexcept {
  if (purpose_ == Purpose::kCall) StartedOperation::on_end(well);  // else part of another one
}

// Its own place in the queue holds it alive no longer; the caller of advance() still does.
void NodeOperation::leave() noexcept {
  std::erase_if(comm_->started_, [this](const auto& other) { return other.get() == this; });
  comm_->any_started_ = !comm_->started_.empty();
}

// ---- of a communicator --------------------------------------------------------------------------

template <class What>
std::shared_ptr<NodeOperation> Communicator::enqueue(const What& what) {
  auto operation = std::make_shared<NodeOperation>(shared_from_this(), what);
  const std::lock_guard lock(node_mutex_);
  started_.push_back(operation);
  any_started_ = true;
  return operation;
}
template std::shared_ptr<NodeOperation> Communicator::enqueue(const Call&);
template std::shared_ptr<NodeOperation> Communicator::enqueue(const Signature&);
template std::shared_ptr<NodeOperation> Communicator::enqueue(const std::string_view&);

std::shared_ptr<StartedOperation> Communicator::node_operation(const Call& call) {
  return enqueue(call);
}

// Before a blocking operation can announce itself.
void Communicator::finish_started(WaitHook& hook) {
  while (any_started_) {
    std::shared_ptr<Operation> last;
    {
      const std::lock_guard lock(node_mutex_);
      if (started_.empty()) return;
      last = started_.back();
    }
    see_through(*last, hook);
  }
}

}  // namespace gradred
