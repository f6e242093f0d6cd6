// Operations that wait for their turn on shared memory: started now, finished when the peers have
// come.
#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/set_up.h"

namespace gradred {

// Operations on the node run in the order in which they were started: each announces itself once
// all before it are finished, at the latest when somebody advances it.
class NodeOperation : public StartedOperation {
 public:
  NodeOperation(std::shared_ptr<Communicator> comm, const AllreduceArgs& args)
      : comm_(std::move(comm)), args_(args) {}

  std::string waiter() const override { return comm_->own_name(); }
  std::string waits_for() const override {
    const std::lock_guard lock(comm_->node_mutex_);
    if (!announced_) return "an operation that waits for others before it";
    return comm_->node_->missing();
  }
  bool is_first_to_wait() const override {
    const std::lock_guard lock(comm_->node_mutex_);
    return announced_ && comm_->node_->is_first_to_wait();
  }

 protected:
  virtual bool announce() { return announce(args_); }
  virtual bool finish() { return finish(args_); }
  bool announce(const AllreduceArgs& args) { return comm_->node_->start_allreduce(args); }
  bool finish(const AllreduceArgs& args) { return comm_->node_->finish_allreduce(args); }

  bool step() override {
    const std::unique_lock lock(comm_->node_mutex_, std::try_to_lock);
    if (!lock.owns_lock() || comm_->started_.front().get() != this) return false;
    if (!announced_) {
      if (observation_ != nullptr) comm_->node_->arrive(observation_->start_ns());
      announced_ = announce();
    }
    if (!announced_ || !finish()) return false;
    if (observation_ != nullptr) observation_->look(*comm_->node_);
    leave();
    return true;
  }

  // Its number is taken on the peers: nothing that follows would match.
  void give_up(const std::exception_ptr& reason) noexcept override {
    FailureReport report = report_of(reason);
    report.text = comm_->own_name() + " gave up an operation that it had started: " + report.text;
    comm_->node_->poison(report);
    withdraw();
  }

  void withdraw() noexcept override {
    const std::lock_guard lock(comm_->node_mutex_);
    leave();
  }

  const std::shared_ptr<Communicator> comm_;
  const AllreduceArgs args_;

 private:
  // Its own place in the queue holds it alive no longer; the caller of advance() still does.
  void leave() noexcept {
    std::erase_if(comm_->started_, [this](const auto& other) { return other.get() == this; });
    comm_->any_started_ = !comm_->started_.empty();
    announced_ = false;  // what the group waits for from now on is another's
  }

  bool announced_ = false;
};

namespace {

// What the small paths of the node carry out whole.
AllreduceArgs whole(const Call& call) {
  return {.send = call.send,
          .recv = call.recv,
          .count = call.count,
          .element = size_of(call.dtype),
          .reduce = find_reduction(call.op, call.dtype),
          .signature = call.signature()};
}

class SmallAllreduce final : public NodeOperation {
 public:
  SmallAllreduce(std::shared_ptr<Communicator> comm, const Call& call)
      : NodeOperation(std::move(comm), whole(call)), call_(call) {}

 protected:
  bool finish() override {
    if (!NodeOperation::finish()) return false;
    scale_result(call_, call_.recv, call_.count, comm_->size());
    return true;
  }

 private:
  const Call call_;
};

// A call of any length in pieces, each a small allreduce of its own: no step waits. For
// communicators without messages; slower than a blocking call, whose ranks work together on each
// piece.
class Piecewise final : public NodeOperation {
 public:
  Piecewise(std::shared_ptr<Communicator> comm, const Call& call)
      : NodeOperation(std::move(comm), whole(call)), call_(call) {
    const bool blocks = call.kind == Kind::kReduceScatterBlock;
    const auto ranks = static_cast<std::size_t>(comm_->size());
    count_ = call.count * (blocks ? ranks : 1);
    per_piece_ = comm_->node().most_startable() / args_.element;
    const std::size_t bytes = count_ * args_.element;
    if (blocks || call.op == Op::kPremul) {
      work_.resize(bytes);
      if (bytes > 0) std::memcpy(work_.data(), input_of(args_), bytes);
      scale_input(call, work_.data(), count_);
    }
    target_ = work_.empty() ? static_cast<std::byte*>(call.recv) : work_.data();
  }

 protected:
  bool announce() override { return NodeOperation::announce(piece()); }

  bool finish() override {
    while (in_piece_ || announce()) {
      in_piece_ = true;
      if (!NodeOperation::finish(piece())) return false;
      in_piece_ = false;
      done_ += per_piece_;
      ++pieces_;
      if (done_ >= count_) {
        put_result();
        return true;
      }
    }
    return false;
  }

 private:
  AllreduceArgs piece() const {
    AllreduceArgs args = args_;
    const std::size_t begin = done_ * args_.element;
    args.send = work_.empty() && call_.send != kInPlace
                    ? static_cast<const std::byte*>(call_.send) + begin
                    : kInPlace;
    args.recv = target_ + begin;
    args.count = std::min(per_piece_, count_ - done_);
    args.signature.detail = mix(args_.signature.detail, pieces_ + 1);
    return args;
  }

  void put_result() {
    const std::size_t bytes = call_.count * args_.element;
    const bool blocks = call_.kind == Kind::kReduceScatterBlock;
    const std::size_t mine = blocks ? bytes * static_cast<std::size_t>(comm_->rank()) : 0;
    if (!work_.empty() && bytes > 0) std::memcpy(call_.recv, work_.data() + mine, bytes);
    scale_result(call_, call_.recv, call_.count, comm_->size());
  }

  const Call call_;
  std::size_t count_ = 0, per_piece_ = 0;
  std::vector<std::byte> work_;  // where input or result have another shape than what is reduced
  std::byte* target_ = nullptr;
  std::size_t done_ = 0;      // elements
  std::uint64_t pieces_ = 0;  // that are done
  bool in_piece_ = true;      // NodeOperation announces the first
};

// The ranks see that they agree about an operation of the schedule path, which then gets its
// number.
class Agreement final : public NodeOperation {
 public:
  Agreement(std::shared_ptr<Communicator> comm, const Signature& signature)
      : NodeOperation(std::move(comm), {.signature = signature}) {}
  std::uint64_t number() const { return number_; }

 protected:
  bool finish() override {
    if (!NodeOperation::finish()) return false;
    number_ = comm_->next_number();  // here, since agreements end in one order on all ranks
    return true;
  }
  void on_end(bool) noexcept override {}  // who observes it sees the whole operation

 private:
  std::uint64_t number_ = 0;
};

class Abort final : public NodeOperation {
 public:
  Abort(std::shared_ptr<Communicator> comm, std::string_view reason)
      : NodeOperation(std::move(comm), {}), reason_(reason) {}

 protected:
  bool announce() override { return comm_->abort_on_node(reason_); }
  bool finish() override { return true; }
  // Nothing is in flight for the program. Peers that come to this call find that the rank has left.
  void give_up(const std::exception_ptr&) noexcept override { withdraw(); }

 private:
  const std::string reason_;
};

// First the agreement on the node, then the schedule.
class AgreedOperation final : public StartedOperation {
 public:
  AgreedOperation(std::shared_ptr<Communicator> comm, const Call& call,
                  std::shared_ptr<Agreement> agreement)
      : comm_(std::move(comm)), call_(call), agreement_(std::move(agreement)) {}

  std::string waiter() const override { return comm_->own_name(); }
  std::string waits_for() const override { return part()->waits_for(); }
  bool is_first_to_wait() const override { return part()->is_first_to_wait(); }
  void observe(std::shared_ptr<Observation> observation) override {
    agreement_->observe(observation);  // where the ranks meet
    StartedOperation::observe(std::move(observation));
  }

 protected:
  bool step() override {
    if (!scheduled_) {
      if (!agreement_->advance()) return false;
      agreement_->rethrow();
      const std::lock_guard lock(part_mutex_);
      scheduled_ = comm_->operation(call_, agreement_->number());
    }
    if (!scheduled_->advance()) return false;
    scheduled_->rethrow();
    return true;
  }

  void give_up(const std::exception_ptr& reason) noexcept override {
    if (scheduled_) {
      scheduled_->abandon(reason);
    } else {
      agreement_->abandon(reason);
    }
  }

  void withdraw() noexcept override {}  // its parts have ended

 private:
  std::shared_ptr<const Operation> part() const {
    const std::lock_guard lock(part_mutex_);
    if (scheduled_) return scheduled_;
    return agreement_;
  }

  const std::shared_ptr<Communicator> comm_;
  const Call call_;
  const std::shared_ptr<Agreement> agreement_;
  std::shared_ptr<StartedOperation> scheduled_;
  mutable std::mutex part_mutex_;  // of scheduled_, for who only reads it
};

}  // namespace

// Only what was agreed enters, so that all ranks take this path or none.
bool Communicator::starts_on_node(const Call& call) const {
  return node_ != nullptr && call.kind == Kind::kAllreduce && call.op != Op::kPremul &&
         native(call) && node_->starts(call.count * size_of(call.dtype));
}

std::shared_ptr<StartedOperation> Communicator::enqueue(std::shared_ptr<NodeOperation> operation) {
  const std::lock_guard lock(node_mutex_);
  started_.push_back(operation);
  any_started_ = true;
  return operation;
}

std::shared_ptr<StartedOperation> Communicator::node_operation(const Call& call) {
  return enqueue(std::make_shared<SmallAllreduce>(shared_from_this(), call));
}

std::shared_ptr<StartedOperation> Communicator::agreed_operation(const Call& call) {
  auto agreement = std::make_shared<Agreement>(shared_from_this(), planned_signature(call));
  enqueue(agreement);
  return std::make_shared<AgreedOperation>(shared_from_this(), call, std::move(agreement));
}

std::shared_ptr<StartedOperation> Communicator::piecewise_operation(const Call& call) {
  return enqueue(std::make_shared<Piecewise>(shared_from_this(), call));
}

std::shared_ptr<StartedOperation> Communicator::aborted_operation(std::string_view reason) {
  return enqueue(std::make_shared<Abort>(shared_from_this(), reason));
}

bool Communicator::abort_on_node(std::string_view reason) {
  if (!node_->may_abort()) return false;
  node_->abort(reason);
  return true;
}

// Before a blocking operation can announce itself.
void Communicator::finish_started(WaitHook& hook) {
  const Engine::Waiting waiting(engine());
  Patience patience;
  Watch watch;
  while (any_started_) {
    std::shared_ptr<Operation> first;
    {
      const std::lock_guard lock(node_mutex_);
      if (started_.empty()) return;
      first = started_.front();
    }
    if (first->advance()) continue;
    patience.wait([&] {
      hook.waiting();
      progress();
      watch.check(AboutOperation{*first});
    });
  }
}

}  // namespace gradred
