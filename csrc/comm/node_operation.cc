// A small allreduce on shared memory that is started now and finished when the peers have come.
#include "comm/communicator.h"
#include "comm/set_up.h"

namespace gradred {

// Operations on the node run in the order in which they were started: each announces itself once
// all before it are finished, at the latest when somebody advances it.
class NodeOperation final : public StartedOperation {
 public:
  NodeOperation(std::shared_ptr<Communicator> comm, const Call& call)
      : comm_(std::move(comm)), call_(call) {}

 protected:
  bool step() override {
    const std::unique_lock lock(comm_->node_mutex_, std::try_to_lock);
    if (!lock.owns_lock() || comm_->started_.front().get() != this) return false;
    const AllreduceArgs args{.send = call_.send,
                             .recv = call_.recv,
                             .count = call_.count,
                             .element = size_of(call_.dtype),
                             .reduce = find_reduction(call_.op, call_.dtype),
                             .signature = call_.signature()};
    announced_ = announced_ || comm_->node_->start_allreduce(args);
    if (!announced_ || !comm_->node_->finish_allreduce(args)) return false;
    scale_result(call_, call_.recv, call_.count, comm_->size());
    leave();
    return true;
  }

  // Its number is taken on the peers: nothing that follows would match.
  void give_up() noexcept override {
    comm_->node_->poison(Failure::kTransport, "a rank gave up an operation that it had started");
    withdraw();
  }

  void withdraw() noexcept override {
    const std::lock_guard lock(comm_->node_mutex_);
    leave();
  }

 private:
  // Its own place in the queue holds it alive no longer; the caller of advance() still does.
  void leave() noexcept {
    std::erase_if(comm_->started_, [this](const auto& other) { return other.get() == this; });
    comm_->any_started_ = !comm_->started_.empty();
  }

  std::shared_ptr<Communicator> comm_;
  const Call call_;
  bool announced_ = false;
};

// Only what was agreed enters, so that all ranks take this path or none.
bool Communicator::starts_on_node(const Call& call) const {
  return node_ != nullptr && call.kind == Kind::kAllreduce && call.op != Op::kPremul &&
         native(call) && node_->starts(call.count * size_of(call.dtype));
}

std::shared_ptr<StartedOperation> Communicator::node_operation(const Call& call) {
  auto operation = std::make_shared<NodeOperation>(shared_from_this(), call);
  const std::lock_guard lock(node_mutex_);
  started_.push_back(operation);
  any_started_ = true;
  return operation;
}

// Before a blocking operation can announce itself.
void Communicator::finish_started(WaitHook& hook) {
  const Engine::Waiting waiting(engine());
  Patience patience;
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
    });
  }
}

}  // namespace gradred
