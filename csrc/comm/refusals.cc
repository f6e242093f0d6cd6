// Operations that this rank leaves, for its arguments or since the ranks do not agree: the peers
// are told, and what is left of such an operation is cleared away.
#include "comm/communicator.h"
#include "comm/node_call.h"
#include "comm/node_operation.h"
#include "comm/waiting.h"
#include "liveness/status_page.h"

namespace gradred {
namespace {

// Clears away what is left of such operations while the program goes on.
class Settling final : public Operation {
  static constexpr unsigned kStepsPerLook = 64;

 public:
  Settling(std::shared_ptr<Communicator> comm, std::uint64_t number)
      : comm_(std::move(comm)), number_(number) {}

  std::string waiter() const override { return comm_->own_name(); }
  std::string waits_for() const override { return "what is left of a refused operation"; }
  bool must_end() const override { return true; }

 protected:
  void on_end(bool well) noexcept override {
    if (!well) comm_->liveness().fail(failure());
  }
  bool step() override {
    if (comm_->operation_log().progress()) return true;
    if (++looks_ % kStepsPerLook != 0) return false;
    comm_->liveness().throw_if_failed();
    comm_->liveness().throw_if_lost("what is left of a refused operation", number_);
    return false;
  }
  void withdraw() noexcept override {}

 private:
  std::shared_ptr<Communicator> comm_;
  const std::uint64_t number_;
  unsigned looks_ = 0;
};

}  // namespace

std::shared_ptr<Operation> Communicator::leave(std::uint64_t number, std::string_view reason) {
  operation_log_.leave(number, reason);
  auto settling = std::make_shared<Settling>(shared_from_this(), number);
  if (!settling->advance()) let_drive(settling);
  return settling;
}

// Over messages a refused call has a number, too.
std::shared_ptr<Operation> Communicator::leave_refused(std::string_view reason) {
  const std::uint64_t number = operation_log_.begin();
  post_begun(number | LastBegun::kOverMessages,
             make_signature(Kind::kAborted, Op::kSum, DType::kUInt8, 0));
  return leave(number, own_name() + " refused its arguments: " + std::string(reason));
}

void Communicator::refuse(std::string_view reason, WaitHook& hook) {
  if (size_ == 1) return;
  prepare(hook);
  if (node_ != nullptr) {
    if (node_queue_.any()) node_queue_.finish(hook);
    NodePoll poll(*this, hook);
    node_->abort(reason, &poll);
  } else if (path_ != nullptr) {
    const auto settling = leave_refused(reason);
    const auto refusal = refuse_on_host(reason);
    // Where no thread of ours may do it, nobody else would receive what the peers have sent.
    const bool threads = thread_may_drive();
    if (!threads) wait_for(*settling, hook);
    if (!threads && refusal != nullptr) wait_for(*refusal, hook);
  }
}

void Communicator::refuse_started(std::string_view reason) {
  if (size_ == 1 || !starts()) return;  // the peers' calls went to the MPI
  if (node_ == nullptr) leave_refused(reason);
  refuse_on_host(reason);
}

// Where ranks of this host share memory each call begins there.
std::shared_ptr<Operation> Communicator::refuse_on_host(std::string_view reason) {
  if (local_group() == nullptr) return nullptr;
  auto operation = enqueue(reason);
  if (!operation->advance()) let_drive(operation);
  return operation;
}

}  // namespace gradred
