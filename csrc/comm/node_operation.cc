// Operations that wait for their turn on shared memory: started now, finished when the peers have
// come.
#include <algorithm>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/set_up.h"
#include "node/execution.h"

namespace gradred {

// Operations on the node run in the order in which they were started: each announces itself once
// all before it are finished, at the latest when somebody advances it.
class NodeOperation : public StartedOperation {
 public:
  std::string waiter() const override { return comm_->own_name(); }
  std::string waits_for() const override {
    const std::lock_guard lock(comm_->node_mutex_);
    if (!execution_.announced()) return "an operation that waits for others before it";
    return comm_->node_->missing();
  }
  bool is_first_to_wait() const override {
    const std::lock_guard lock(comm_->node_mutex_);
    return execution_.announced() && comm_->node_->is_first_to_wait();
  }

 protected:
  explicit NodeOperation(std::shared_ptr<Communicator> comm)
      : comm_(std::move(comm)), execution_(*comm_->node_) {}

  virtual void on_result() {}  // before the next operation on the node begins

  bool step() override {
    const std::unique_lock lock(comm_->node_mutex_, std::try_to_lock);
    if (!lock.owns_lock() || comm_->started_.front().get() != this) return false;
    if (observation_ != nullptr && !execution_.announced()) {
      comm_->node_->arrive(observation_->start_ns());
    }
    if (!execution_.advance()) return false;
    on_result();
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
  NodeExecution execution_;

 private:
  // Its own place in the queue holds it alive no longer; the caller of advance() still does.
  void leave() noexcept {
    std::erase_if(comm_->started_, [this](const auto& other) { return other.get() == this; });
    comm_->any_started_ = !comm_->started_.empty();
  }
};

namespace {

class NodeCollective final : public NodeOperation {
 public:
  NodeCollective(std::shared_ptr<Communicator> comm, const Call& call)
      : NodeOperation(std::move(comm)), call_(call) {
    NodeCall made = node_call(call);
    if (call.op == Op::kPremul) made.send = scaled_input(call, comm_->size(), scaled_);
    execution_.start(made);
  }

 protected:
  void on_result() override { scale_result(call_, call_.recv, call_.count, comm_->size()); }

 private:
  const Call call_;
  std::vector<std::byte> scaled_;
};

// The ranks see that they agree about an operation of the schedule path, which then gets its
// number.
class Agreement final : public NodeOperation {
 public:
  Agreement(std::shared_ptr<Communicator> comm, const Signature& signature)
      : NodeOperation(std::move(comm)) {
    execution_.start({.signature = signature});
  }
  std::uint64_t number() const { return number_; }

 protected:
  // Agreements end in one order on all ranks.
  void on_result() override { number_ = comm_->next_number(); }
  void on_end(bool) noexcept override {}  // who observes it sees the whole operation

 private:
  std::uint64_t number_ = 0;
};

class Abort final : public NodeOperation {
 public:
  Abort(std::shared_ptr<Communicator> comm, std::string_view reason)
      : NodeOperation(std::move(comm)) {
    execution_.start_refusal(std::string(reason));
  }

 protected:
  // Nothing is in flight for the program. Peers that come to this call find that the rank has left.
  void give_up(const std::exception_ptr&) noexcept override { withdraw(); }
};

// First the agreement on the node, then the schedule.
class AgreedOperation final : public StartedOperation {
 public:
  AgreedOperation(std::shared_ptr<Communicator> comm, const Call& call, Plan plan,
                  std::shared_ptr<Agreement> agreement)
      : comm_(std::move(comm)),
        call_(call),
        plan_(std::move(plan)),
        agreement_(std::move(agreement)) {}

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
      scheduled_ = comm_->operation(call_, plan_, agreement_->number());
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
  const Plan plan_;
  const std::shared_ptr<Agreement> agreement_;
  std::shared_ptr<StartedOperation> scheduled_;
  mutable std::mutex part_mutex_;  // of scheduled_, for who only reads it
};

}  // namespace

// Whether what is in flight goes through the node group: so far what it does in one step, and all
// on a communicator that has nothing else. Only what was agreed enters, so that all ranks take this
// path or none.
bool Communicator::fits_node(const Call& call) const {
  return node_only() || (call.kind == Kind::kAllreduce && call.op != Op::kPremul &&
                         node_->options().fits_slots(call.count * size_of(call.dtype),
                                                     static_cast<std::size_t>(size_)));
}

std::shared_ptr<StartedOperation> Communicator::enqueue(std::shared_ptr<NodeOperation> operation) {
  const std::lock_guard lock(node_mutex_);
  started_.push_back(operation);
  any_started_ = true;
  return operation;
}

std::shared_ptr<StartedOperation> Communicator::node_operation(const Call& call) {
  return enqueue(std::make_shared<NodeCollective>(shared_from_this(), call));
}

std::shared_ptr<StartedOperation> Communicator::agreed_operation(const Call& call,
                                                                 const Plan& plan) {
  auto agreement = std::make_shared<Agreement>(shared_from_this(), planned_signature(call, plan));
  enqueue(agreement);
  return std::make_shared<AgreedOperation>(shared_from_this(), call, plan, std::move(agreement));
}

std::shared_ptr<StartedOperation> Communicator::aborted_operation(std::string_view reason) {
  return enqueue(std::make_shared<Abort>(shared_from_this(), reason));
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
