#include "comm/node_operation.h"

#include <algorithm>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/node_call.h"

namespace gradred {

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, Purpose purpose)
    : comm_(comm.get()),
      alive_(std::move(comm)),
      group_(*comm_->local_group()),
      purpose_(purpose),
      execution_(group_) {}

NodeOperation::NodeOperation(Communicator& comm)
    : comm_(&comm), group_(*comm_->local_group()), purpose_(Purpose::kCall), execution_(group_) {}

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, const Call& call)
    : NodeOperation(std::move(comm), Purpose::kCall) {
  call_ = call;
  const bool blocks = call.kind == Kind::kReduceScatterBlock;
  const std::size_t ranks = blocks ? static_cast<std::size_t>(comm_->size()) : 1;
  bytes_ = ranks * call.count * size_of(call.dtype);
  if (call.before() == nullptr) start_call();
}

void NodeOperation::start_call() {
  given_ = true;
  NodeCall made = node_call(call_);
  if (call_.op == Op::kPremul && made.device == nullptr) {
    made.send = scaled_input(call_, comm_->size(), scaled_);
  }
  execution_.start(made);
}

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, const Signature& agreement)
    : NodeOperation(std::move(comm), Purpose::kAgreement) {
  execution_.start({.signature = agreement});
}

NodeOperation::NodeOperation(std::shared_ptr<Communicator> comm, std::string_view refusal)
    : NodeOperation(std::move(comm), Purpose::kRefusal) {
  execution_.start_refusal(group_.refused_text(refusal));
}

std::string NodeOperation::waiter() const { return comm_->own_name(); }

std::string NodeOperation::waits_for() const {
  const auto lock = comm_->node_queue().lock();
  if (!execution_.announced()) return "an operation that waits for others before it";
  return group_.missing();
}

WaitRecord NodeOperation::wait_record() const {
  const auto lock = comm_->node_queue().lock();
  return execution_.announced() ? group_.wait_record() : WaitRecord();
}

bool NodeOperation::is_first_to_wait() const {
  const auto lock = comm_->node_queue().lock();
  return execution_.announced() && group_.is_first_to_wait();
}

bool NodeOperation::spins() const { return comm_->spins(); }

// ---- with nothing before it ---------------------------------------------------------------------

NodeOperation::Alone NodeOperation::start_alone(const Call& call) {
  execution_.start(node_call(call));
  if (!execution_.is_short()) return Alone::kTooLong;
  bytes_ = call.count * size_of(call.dtype);
  try {
    if (!look_at_peers()) return Alone::kGoesOn;
    scale_result(call, call.recv, call.count, comm_->size());
    return Alone::kEndedWell;
  } catch (...) {
    end(std::current_exception());
    return Alone::kGoesOn;
  }
}

// A request and the engine's care cost more than a small operation takes: where the peers come at
// the same time, it ends without them.
bool NodeOperation::look_at_peers() {
  constexpr std::size_t kSmall = 4096;
  constexpr int kLooks = 400;
  if (execution_.advance()) return true;
  if (bytes_ > kSmall || !spins()) return false;
  const Awaited& awaited = execution_.awaited();
  for (int look = 0; look < kLooks; ++look) {
    if (awaited.reached() && execution_.advance()) return true;
  }
  return false;
}

void NodeOperation::go_on(std::shared_ptr<Communicator> comm, const Call& call) {
  alive_ = std::move(comm);
  call_ = call;
  begun_ = true;
}

// ---- in line ------------------------------------------------------------------------------------

bool NodeOperation::step() {
  // Its end takes a lock that may be held while gradred calls the MPI.
  if (purpose_ == Purpose::kAgreement && caller() == Caller::kInMpi) return false;
  if (!finish_those_before()) return false;
  const auto lock = comm_->node_queue().try_lock();
  if (!lock.owns_lock()) {
    stop_at({Progress::State::kTaken, {}});
    return false;
  }
  if (!comm_->node_queue().is_first(this)) return false;
  if (!begun_ && !begin()) return false;
  if (!execution_.advance()) {
    if (execution_.awaited().word == nullptr) return false;
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
    const std::shared_ptr<StartedOperation> first = comm_->node_queue().first();
    if (first.get() == this) return true;
    const Progress progress = first->advance(caller());
    if (progress) continue;
    stop_at(progress);
    return false;
  }
}

// To start a call is to announce it: what takes longer is left to who waits, or to the engine.
bool NodeOperation::begin() {
  if (Stream* const before = call_.before(); before != nullptr && !given_) {
    if (!before->ready()) return false;
    start_call();
  }
  begun_ = true;
  if (observation_ != nullptr) group_.arrive(observation_->start_ns());
  if (execution_.is_short()) return true;
  begun_ = execution_.begin();  // not, where a refused one before it has to end first
  return false;
}

void NodeOperation::take_result() {
  if (purpose_ == Purpose::kAgreement) number_ = comm_->next_number();  // on all ranks in one order
  if (purpose_ == Purpose::kCall && !execution_.ran_on_devices()) {
    scale_result(call_, execution_.recv(), call_.count, comm_->size());
  }
  if (observation_ != nullptr) observation_->look(group_);
}

// Its number is taken on the peers: nothing that follows would match. A refusal that has not been
// announced fails nothing: peers that come to this call find that the rank has left.
void NodeOperation::give_up(const std::exception_ptr& reason) noexcept {
  if (purpose_ != Purpose::kRefusal) {
    FailureReport report = report_of(reason);
    report.text = comm_->own_name() + " gave up an operation that it had started: " + report.text;
    group_.poison(report);
  }
  withdraw();
}

void NodeOperation::withdraw() noexcept {
  const auto lock = comm_->node_queue().lock();
  leave();
}

void NodeOperation::on_end(bool well) noexcept {
  if (purpose_ == Purpose::kCall) StartedOperation::on_end(well);  // else part of another one
}

// Its own place in the queue holds it alive no longer; the caller of advance() still does.
void NodeOperation::leave() noexcept { comm_->node_queue().remove(this); }

// ---- of a communicator --------------------------------------------------------------------------

template <class What>
std::shared_ptr<NodeOperation> Communicator::enqueue(const What& what) {
  auto operation = std::make_shared<NodeOperation>(shared_from_this(), what);
  node_queue_.add(operation);
  return operation;
}
template std::shared_ptr<NodeOperation> Communicator::enqueue(const Call&);
template std::shared_ptr<NodeOperation> Communicator::enqueue(const Signature&);
template std::shared_ptr<NodeOperation> Communicator::enqueue(const std::string_view&);

// Several hosts: those before it call the MPI, and it drives them.
bool NodeOperation::needs_no_mpi() const { return comm_->shares_memory(); }

std::shared_ptr<StartedOperation> Communicator::node_operation(const Call& call) {
  return enqueue(call);
}

// As long as nothing is in flight, and nobody observes the calls.
std::shared_ptr<StartedOperation> Communicator::start_short(const Call& call) {
  if (spare_ == nullptr) spare_ = std::make_shared<NodeOperation>(*this);
  const NodeOperation::Alone alone = spare_->start_alone(call);
  if (alone == NodeOperation::Alone::kEndedWell) return nullptr;
  if (alone == NodeOperation::Alone::kTooLong) return start(call);
  const std::shared_ptr<NodeOperation> operation = std::move(spare_);
  operation->go_on(shared_from_this(), call);
  if (operation->ended()) return operation;  // it has failed
  node_queue_.add(operation);
  care_for(operation, call);
  return operation;
}

}  // namespace gradred
