// Means of integers: a sum of words, which any plan carries out in host memory, and a division.
#include <new>

#include "base/errors.h"
#include "comm/dispatch.h"
#include "comm/sum_of_words.h"
#include "engine/on_copies.h"
#include "families/devices/staged_calls.h"
#include "families/messages/agreement.h"

namespace gradred {
namespace {

constexpr const char* kNoMemory = "no memory for the sums of its integers";

class MeanOperation final : public OperationOnCopies {
 public:
  using Make = StagedOperation::Make;

  MeanOperation(const Call& call, int rank, int size, const Make& make) : sum_(call, rank, size) {
    inner_ = make(sum_.call());
  }

  bool may_advance_in_mpi() const override { return inner_->may_advance_in_mpi(); }

 protected:
  bool step() override {
    if (!advance_inner()) return false;
    sum_.write_mean();
    return true;
  }
  void give_up(const std::exception_ptr& reason) noexcept override {
    inner_->abandon(reason);
    withdraw();
  }
  void withdraw() noexcept override {
    if (inner_->holds_memory()) sum_.keep_for_ever();
  }

 private:
  SumOfWords sum_;
};

}  // namespace

// A plan that a call names is one that could serve it.
void Dispatch::check_plan_of_mean(const Call& call) const {
  if (call.plan == nullptr) return;
  const std::shared_ptr<const Plan> plan = parts_.choice.plan_for(call, true);
  family_of(*plan).check(parts_, call);
}

void Dispatch::run_mean(const Call& call, WaitHook& hook, Run run) {
  if (!call.on_host() || call.before() != nullptr) {
    try {
      check_plan_of_mean(call);
    } catch (const UsageError& error) {
      parts_.agreement.refuse(error.what(), hook);
      throw;
    }
    return run_on_copies(parts_, call, hook, [&](const Call& made) { run_mean(made, hook, run); });
  }
  std::optional<SumOfWords> sum;
  try {
    sum.emplace(call, parts_.member.rank, parts_.member.size);
  } catch (const std::bad_alloc&) {
    parts_.agreement.refuse(kNoMemory, hook);
    throw;
  }
  try {
    (this->*run)(sum->call(), hook);
  } catch (const UsageError&) {
    throw;
  } catch (...) {
    sum->keep_for_ever();
    throw;
  }
  sum->write_mean();
}

std::shared_ptr<StartedOperation> Dispatch::mean_operation(const Call& call) {
  const int rank = parts_.member.rank, size = parts_.member.size;
  const auto make = [&](const Call& made) { return operation_for(made); };
  if (call.on_host() && call.before() == nullptr) {
    return std::make_shared<MeanOperation>(call, rank, size, make);
  }
  try {
    check_plan_of_mean(call);
    return std::make_shared<StagedOperation>(call, rank, size, make,
                                             StagedOperation::ReadsAtOnce());
  } catch (const Error& error) {
    parts_.agreement.refuse_started(error.what());
    throw;
  }
}

}  // namespace gradred
