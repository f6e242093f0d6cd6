// Calls that are carried out as others: means of integers, which are sums of words and a division,
// and short calls over messages.
#include <new>

#include "base/errors.h"
#include "comm/dispatch.h"
#include "comm/gathered.h"
#include "comm/sum_of_words.h"
#include "engine/on_copies.h"
#include "families/devices/staged_calls.h"
#include "families/messages/agreement.h"

namespace gradred {
namespace {

constexpr const char* kNoMemory = "no memory for what all ranks give";

class CarriedOperation final : public OperationOnCopies {
 public:
  using Make = StagedOperation::Make;

  CarriedOperation(std::unique_ptr<Carried> carried, const Make& make)
      : carried_(std::move(carried)) {
    inner_ = make(carried_->call());
  }

  bool may_advance_in_mpi() const override { return inner_->may_advance_in_mpi(); }

 protected:
  bool step() override {
    if (!advance_inner()) return false;
    carried_->finish();
    return true;
  }
  void give_up(const std::exception_ptr& reason) noexcept override {
    inner_->abandon(reason);
    withdraw();
  }
  void withdraw() noexcept override {
    if (inner_->holds_memory()) carried_->keep_for_ever();
  }

 private:
  const std::unique_ptr<Carried> carried_;
};

// What `make` makes for a blocking call. If memory is lacking, the peers' calls fail, too. (For a
// call that is started, Dispatch::start() sees to that.)
template <class Make>
auto made_or_refused(Agreement& agreement, WaitHook& hook, Make make) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    agreement.refuse(kNoMemory, hook);
    throw;
  }
}

// Whether each rank has a host of its own.
bool is_alone(const Parts& parts) { return parts.place.topology.hosts == parts.place.size; }

template <class Run>
void run_carried(Carried& carried, Run run) {
  try {
    run(carried.call());
  } catch (const UsageError&) {
    throw;
  } catch (...) {
    carried.keep_for_ever();
    throw;
  }
  carried.finish();
}

}  // namespace

// ---- short calls over messages ------------------------------------------------------------------

bool Dispatch::is_gathered(const Call& call) const {
  return parts_.member.size > 1 && parts_.path != nullptr && !parts_.node_path.serves_all() &&
         GatheredCall::serves(call, parts_.member.size) && parts_.choice.wish.plan.empty() &&
         (call.plan == nullptr || *call.plan == '\0');
}

void Dispatch::run_gathered(const Call& call, WaitHook& hook) {
  if (!call.on_host() || call.before() != nullptr) {
    return run_on_copies(parts_, call, hook, [&](const Call& made) { run_gathered(made, hook); });
  }
  auto gathered = made_or_refused(parts_.agreement, hook, [&] {
    return GatheredCall(call, parts_.member.rank, parts_.member.size, is_alone(parts_),
                        std::move(memory_to_gather_));
  });
  run_carried(gathered, [&](const Call& made) {
    const std::shared_ptr<const Plan> plan = plan_or_refuse(made, hook);
    family_of(*plan).run(parts_, *plan, made, hook);
  });
  memory_to_gather_ = gathered.take_memory();
}

std::shared_ptr<StartedOperation> Dispatch::gathered_operation(const Call& call) {
  return carried_operation(call,
                           [](const Call& made, const Parts& parts) -> std::unique_ptr<Carried> {
                             return std::make_unique<GatheredCall>(
                                 made, parts.member.rank, parts.member.size, is_alone(parts));
                           });
}

// ---- means of integers --------------------------------------------------------------------------

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
  const auto sum = made_or_refused(parts_.agreement, hook, [&] {
    return std::make_unique<SumOfWords>(call, parts_.member.rank, parts_.member.size);
  });
  run_carried(*sum, [&](const Call& made) { (this->*run)(made, hook); });
}

std::shared_ptr<StartedOperation> Dispatch::mean_operation(const Call& call) {
  if (!call.on_host() || call.before() != nullptr) {
    try {
      check_plan_of_mean(call);
    } catch (const UsageError& error) {
      parts_.agreement.refuse_started(error.what());
      throw;
    }
  }
  return carried_operation(
      call, [](const Call& made, const Parts& parts) -> std::unique_ptr<Carried> {
        return std::make_unique<SumOfWords>(made, parts.member.rank, parts.member.size);
      });
}

// What is not in host memory is copied there first, and comes here again.
std::shared_ptr<StartedOperation> Dispatch::carried_operation(const Call& call, Carry carry) {
  const auto make = [&](const Call& made) { return operation_for(made); };
  if (call.on_host() && call.before() == nullptr) {
    return std::make_shared<CarriedOperation>(carry(call, parts_), make);
  }
  try {
    return std::make_shared<StagedOperation>(call, parts_.member.rank, parts_.member.size, make,
                                             StagedOperation::ReadsAtOnce());
  } catch (const Error& error) {
    parts_.agreement.refuse_started(error.what());
    throw;
  }
}

}  // namespace gradred
