#include "comm/agreement.h"

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/driving.h"
#include "comm/families.h"
#include "comm/node_call.h"
#include "comm/node_operation.h"
#include "comm/waiting.h"
#include "liveness/status_page.h"

namespace gradred {
namespace {

// Receives the remaining messages of an operation that a rank has refused, while the program goes
// on.
class Settling final : public Operation {
  static constexpr unsigned kStepsPerLook = 64;

 public:
  Settling(std::shared_ptr<Communicator> comm, std::uint64_t number)
      : comm_(std::move(comm)), number_(number) {}

  std::string waiter() const override { return comm_->liveness().own_name(); }
  std::string waits_for() const override { return messages(); }
  bool must_end() const override { return true; }

 protected:
  void on_end(bool well) noexcept override {
    if (!well) comm_->liveness().fail(failure());
  }
  bool step() override {
    if (comm_->operation_log().progress()) return true;
    if (++looks_ % kStepsPerLook != 0) return false;
    comm_->liveness().throw_if_failed();
    comm_->liveness().throw_if_lost(messages(), number_);
    return false;
  }
  void withdraw() noexcept override {}

 private:
  std::string messages() const {
    return "the messages of operation " + std::to_string(number_) + ", which a rank has refused";
  }

  std::shared_ptr<Communicator> comm_;
  const std::uint64_t number_;
  unsigned looks_ = 0;
};

}  // namespace

// ---- agreement ----------------------------------------------------------------------------------

void Agreement::agree(const Signature& signature, WaitHook& hook) {
  if (comm_.size() == 1) return;
  comm_.prepare(hook);
  if (comm_.node_path().serves_all()) {
    comm_.node_path().agree(signature, hook);
  } else if (comm_.has_messages()) {
    const Call agreement{
        .waited = true, .plan = plan_of_agreements(comm_.place()), .agreement = signature};
    const std::shared_ptr<const Plan> chosen = comm_.choice().plan_for(agreement, true);
    wait_for(*chosen->family->operation(comm_, *chosen, agreement), hook);
  }
}

void Agreement::agree_on_init(const Call& call, WaitHook& hook) {
  Signature signature = planned_signature(call, *comm_.choice().plan_for(call, false));
  signature.detail = mix(signature.detail, std::string_view("init"));
  agree(signature, hook);
}

void Agreement::leave_to_mpi(Kind kind, std::uint64_t detail, WaitHook& hook) {
  if (comm_.node_only()) {
    refuse(kMemoryOnly, hook);
    throw UsageError(std::string(kMemoryOnly));
  }
  agree(make_signature(Kind::kLeftToMpi, Op::kSum, DType::kUInt8, static_cast<std::uint64_t>(kind),
                       detail),
        hook);
}

// ---- refusals -----------------------------------------------------------------------------------

std::shared_ptr<Operation> Agreement::leave(std::uint64_t number, std::string_view reason) {
  comm_.operation_log().leave(number, reason);
  auto settling = std::make_shared<Settling>(comm_.shared(), number);
  if (!settling->advance()) let_drive(settling);
  return settling;
}

// A refused call over messages takes a number like any other call.
std::shared_ptr<Operation> Agreement::leave_refused(std::string_view reason) {
  const std::uint64_t number = comm_.operation_log().begin();
  post_begun(number | LastBegun::kOverMessages,
             make_signature(Kind::kAborted, Op::kSum, DType::kUInt8, 0));
  return leave(number,
               comm_.liveness().own_name() + " refused its arguments: " + std::string(reason));
}

void Agreement::refuse(std::string_view reason, WaitHook& hook) {
  if (comm_.size() == 1) return;
  comm_.prepare(hook);
  if (comm_.node_path().serves_all()) {
    comm_.node_path().refuse(reason, hook);
  } else if (comm_.has_messages()) {
    const auto settling = leave_refused(reason);
    const auto refusal = refuse_on_host(reason);
    // Without a progress thread that may do it, no other thread would receive what the peers have
    // sent.
    const bool threads = thread_may_drive();
    if (!threads) wait_for(*settling, hook);
    if (!threads && refusal != nullptr) wait_for(*refusal, hook);
  }
}

void Agreement::refuse_started(std::string_view reason) {
  if (comm_.size() == 1 || !comm_.starts()) return;  // the peers' calls went to the MPI
  if (!comm_.node_path().serves_all()) leave_refused(reason);
  refuse_on_host(reason);
}

// If ranks of this host share memory, each call begins in their node group.
std::shared_ptr<Operation> Agreement::refuse_on_host(std::string_view reason) {
  if (comm_.node_path().group() == nullptr) return nullptr;
  auto operation = enqueue(comm_.shared_node_path(), reason);
  if (!operation->advance()) let_drive(operation);
  return operation;
}

}  // namespace gradred
