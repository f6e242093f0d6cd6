// Plan "nccl": NCCL's own calls, on arrays in GPUs' memory on all ranks.
//
// Only where it is named, by a call or by GRADRED_DEVICE_PLAN: it takes a GPU for each rank, which
// no rank knows of its peers before the call, and arrays there on all of them.
#include <limits>

#include "base/errors.h"
#include "comm/communicator.h"
#include "comm/families.h"

namespace gradred {
namespace {

class NcclFamily final : public Family {
 public:
  std::string_view name() const override { return "nccl"; }
  std::string_view about() const override {
    return "NCCL's own call, on arrays in the memory of GPUs of which each rank has one";
  }
  Medium medium() const override { return Medium::kLibrary; }
  std::vector<std::string> plans(Collective) const override { return {"nccl"}; }

  std::optional<std::string> why_not(const Question& question, const Place& place) const override {
    if (question.own != nullptr) return "NCCL knows no schedule of the caller's";
    if (question.plan.empty()) return "it is taken where it is named";
    const bool meets = place.why_no_memory.empty() || place.why_no_messages.empty();
    if (!meets) return "the ranks have no way to agree on the call: " + place.why_no_messages;
    return std::nullopt;
  }

  std::vector<Plan> offers(const Question&, const Place&) const override {
    Plan plan{.family = this, .name = "nccl", .reason = "as asked"};
    plan.seconds = std::numeric_limits<double>::infinity();
    return {plan};
  }

  bool reads(const Call&) const override { return true; }  // check() refuses what it cannot
  bool keeps_streams() const override { return true; }
  void check(Communicator& comm, const Call& call) const override {
    const std::string why = comm.library_ranks().why_not(call);
    if (!why.empty()) throw UsageError("plan 'nccl' cannot serve this call: " + why);
  }
  void run(Communicator& comm, const Plan& plan, const Call& call, WaitHook& hook) const override {
    wait_for(*comm.library_operation(call, plan), hook);
  }
  std::shared_ptr<StartedOperation> operation(Communicator& comm, const Plan& plan,
                                              const Call& call) const override {
    return comm.library_operation(call, plan);
  }
};

}  // namespace

const Family& nccl_family() {
  static const NcclFamily family;
  return family;
}

}  // namespace gradred
