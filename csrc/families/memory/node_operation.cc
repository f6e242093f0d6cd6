#include "families/memory/node_operation.h"

#include <algorithm>

#include "base/errors.h"
#include "families/memory/as_node_call.h"
#include "families/memory/node_path.h"
#include "families/memory/scaling.h"

namespace gradred {

NodeOperation::NodeOperation(std::shared_ptr<NodePath> path, Purpose purpose)
    : path_(path.get()),
      alive_(std::move(path)),
      group_(*path_->group()),
      purpose_(purpose),
      execution_(group_) {}

NodeOperation::NodeOperation(NodePath& path)
    : path_(&path), group_(*path_->group()), purpose_(Purpose::kCall), execution_(group_) {}

NodeOperation::NodeOperation(std::shared_ptr<NodePath> path, const Call& call)
    : NodeOperation(std::move(path), Purpose::kCall) {
  call_ = call;
  const bool own_block = info_of(call.kind).input == Part::kOwnBlock;
  const std::size_t counts = own_block ? 1 : vector_counts(call.kind, group_.size());
  bytes_ = counts * call.count * size_of(call.dtype);
  if (call.before() == nullptr) start_call();
}

void NodeOperation::start_call() {
  given_ = true;
  NodeCall made = node_call(call_);
  if (call_.op == Op::kPremul && made.device == nullptr) {
    made.send = scaled_input(call_, group_.size(), scaled_);
  }
  execution_.start(made);
}

NodeOperation::NodeOperation(std::shared_ptr<NodePath> path, const Signature& agreement)
    : NodeOperation(std::move(path), Purpose::kAgreement) {
  execution_.start({.signature = agreement});
}

NodeOperation::NodeOperation(std::shared_ptr<NodePath> path, std::string_view refusal)
    : NodeOperation(std::move(path), Purpose::kRefusal) {
  execution_.start_refusal(group_.refused_text(refusal));
}

std::string NodeOperation::waiter() const { return group_.own_name(); }

std::string NodeOperation::waits_for() const {
  const auto lock = path_->queue().lock();
  if (!execution_.announced()) return "an operation that waits for others before it";
  return group_.missing();
}

WaitRecord NodeOperation::wait_record() const {
  const auto lock = path_->queue().lock();
  return execution_.announced() ? group_.wait_record() : WaitRecord();
}

bool NodeOperation::is_first_to_wait() const {
  const auto lock = path_->queue().lock();
  return execution_.announced() && group_.is_first_to_wait();
}

bool NodeOperation::spins() const { return path_->spins(); }

// ---- with nothing before it ---------------------------------------------------------------------

NodeOperation::Alone NodeOperation::start_alone(const Call& call) {
  execution_.start(node_call(call));
  if (!execution_.is_short()) return Alone::kTooLong;
  bytes_ = call.count * size_of(call.dtype);
  try {
    if (!look_at_peers()) return Alone::kGoesOn;
    settle_result(call, call.out.data, group_.rank(), group_.size());
    return Alone::kEndedWell;
  } catch (...) {
    end(std::current_exception());
    return Alone::kGoesOn;
  }
}

// A request and a place in the engine cost more than a small operation takes. If the peers come at
// the same time, the operation ends without them.
bool NodeOperation::look_at_peers() {
  constexpr std::size_t kSmall = 4096;
  constexpr int kLooks = 800;
  if (execution_.advance()) return true;
  if (bytes_ > kSmall || !spins()) return false;
  const Awaited& awaited = execution_.awaited();
  for (int look = 0; look < kLooks; ++look) {
    if (awaited.reached() && execution_.advance()) return true;
  }
  return false;
}

void NodeOperation::go_on(std::shared_ptr<NodePath> path, const Call& call) {
  alive_ = std::move(path);
  call_ = call;
  begun_ = true;
}

// ---- in the queue -------------------------------------------------------------------------------

bool NodeOperation::step() {
  // Its end takes a lock that may be held while gradred calls the MPI.
  if (purpose_ == Purpose::kAgreement && caller() == Caller::kInMpi) return false;
  if (!finish_those_before()) return false;
  const auto lock = path_->queue().try_lock();
  if (!lock.owns_lock()) {
    stop_at({Progress::State::kTaken, {}});
    return false;
  }
  if (!path_->queue().is_first(this)) return false;
  if (!begun_ && !begin()) return false;
  if (!execution_.advance()) {
    const bool has_word = execution_.awaited().word != nullptr;
    const auto state = has_word ? Progress::State::kAwaits : Progress::State::kPolls;
    stop_at({state, execution_.awaited(), execution_.wait_cause()});
    return false;
  }
  take_result();
  leave();
  return true;
}

// This operation waits for what the first one in the queue waits for.
bool NodeOperation::finish_those_before() {
  while (true) {
    const std::shared_ptr<StartedOperation> first = path_->queue().first();
    if (first.get() == this) return true;
    const Progress progress = first->advance(caller());
    if (progress) continue;
    stop_at(progress);
    return false;
  }
}

// To start a call is to announce it. What takes longer is left to the thread that waits, or to the
// engine.
bool NodeOperation::begin() {
  if (Stream* const before = call_.before(); before != nullptr && !given_) {
    if (!before->ready()) {
      stop_at({Progress::State::kPolls, {}, WaitCause::kStream});
      return false;
    }
    start_call();
  }
  begun_ = true;
  if (observation_ != nullptr) group_.arrive(observation_->start_ns());
  if (execution_.is_short()) return true;
  begun_ = execution_.begin();  // false if a refused one before it must end first
  return false;
}

void NodeOperation::take_result() {
  // All ranks take their numbers in the same order.
  if (purpose_ == Purpose::kAgreement) number_ = path_->next_number();
  if (purpose_ == Purpose::kCall && !execution_.ran_on_devices()) {
    settle_result(call_, execution_.recv(), group_.rank(), group_.size());
  }
  used_transport_ = group_.used_transport();
  if (observation_ != nullptr) observation_->look(group_);
}

// The peers have taken the operation's number, so nothing that follows would match. A refusal that
// has not been announced fails no call: peers that come to this call find that the rank has left.
void NodeOperation::give_up(const std::exception_ptr& reason) noexcept {
  if (purpose_ != Purpose::kRefusal) {
    FailureReport report = report_of(reason);
    report.text = group_.own_name() + " gave up an operation that it had started: " + report.text;
    group_.poison(report);
  }
  withdraw();
}

void NodeOperation::withdraw() noexcept {
  const auto lock = path_->queue().lock();
  leave();
}

void NodeOperation::on_end(bool well) noexcept {
  // With another purpose this operation is part of another one, which ends by itself.
  if (purpose_ == Purpose::kCall) StartedOperation::on_end(well);
}

// The queue keeps it alive no longer; the caller of advance() still does.
void NodeOperation::leave() noexcept { path_->queue().remove(this); }

// Over several hosts, the operations before it call the MPI, and it advances them.
bool NodeOperation::needs_no_mpi() const { return path_->serves_all(); }

// ---- behind others in the queue -----------------------------------------------------------------

namespace {

template <class What>
std::shared_ptr<NodeOperation> in_line(const std::shared_ptr<NodePath>& path, const What& what) {
  auto operation = std::make_shared<NodeOperation>(path, what);
  path->queue().add(operation);
  return operation;
}

}  // namespace

std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path, const Call& call) {
  return in_line(path, call);
}
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path,
                                       const Signature& agreement) {
  return in_line(path, agreement);
}
std::shared_ptr<NodeOperation> enqueue(const std::shared_ptr<NodePath>& path,
                                       std::string_view refusal) {
  return in_line(path, refusal);
}

}  // namespace gradred
