#include "families/mpi/family_mpi.h"

#include <limits>

#include "calls/mpi_handles.h"
#include "engine/started.h"
#include "families/mpi/mpi_operation.h"

namespace gradred {
namespace {

// If no plan is named, the MPI must be faster by this factor, because the measurement is not more
// exact.
constexpr double kMargin = 1.05;
// Nor is it chosen for vectors longer than this many times the longest measured one. MPIs change
// their algorithm with the length, so a measurement of 1 MiB says nothing of 64 MiB.
constexpr std::size_t kFarther = 4;

class MpiFamily final : public Family {
 public:
  std::string_view name() const override { return "mpi"; }
  std::string_view about() const override { return "the MPI's own call"; }
  std::string_view medium() const override { return "mpi"; }
  const char* traced_as() const override { return "the MPI"; }
  UsedTransport used_transport() const override { return UsedTransport::kMpi; }
  std::vector<std::string> plans(Kind) const override { return {"mpi"}; }

  std::optional<std::string> why_not(const Question& question, const Place& place) const override {
    if (question.own != nullptr) return "the MPI knows no schedule of the caller's";
    if (!place.why_no_mpi.empty()) return place.why_no_mpi;
    return std::nullopt;
  }

  // If its cost was not measured, it is chosen if it is named, or if no other plan can serve the
  // call.
  std::vector<Plan> offers(const Question& question, const Place& place) const override {
    Plan plan{.source = this, .name = "mpi"};
    plan.reason = question.plan.empty() ? "nothing of gradred's own can serve" : "as asked";
    plan.seconds = std::numeric_limits<double>::infinity();
    const Figures& figures = place.costs->figures();
    if (question.collective != Kind::kAllreduce || !figures.measured()) return {plan};
    const bool is_known = question.bytes <= kFarther * figures.sizes.back().bytes;
    if (question.plan.empty() && !(question.mpi_may_carry && is_known)) return {plan};
    plan.seconds = figures.seconds_on_mpi(question.bytes);
    if (question.plan.empty()) plan.seconds *= kMargin;
    if (question.plan.empty()) plan.reason = "costs least (figures " + figures.source() + ")";
    return {plan};
  }

  // Needs an MPI that knows device memory. It is not given what gradred itself would have to scale,
  // cut or reduce there.
  ArrayAccess access(const Call& call) const override {
    const bool scales = call.op == Op::kAvg || call.op == Op::kPremul;
    const bool cuts = call.kind == Kind::kReduceScatterBlock;
    const bool combines = reduces(call.kind) && !mpi_handles(call.op, call.dtype);
    const bool reads = call.on_host() || (!scales && !cuts && !combines && mpi_reads_devices());
    return direct_or(ArrayAccess::kCopiedBefore, call, reads);
  }
  void check(const Parts&, const Call& call) const override { check_mpi_call(call); }
  void run(const Parts& parts, const Plan& plan, const Call& call, WaitHook& hook) const override {
    run_agreed_on_mpi(parts, call, plan, hook);
  }
  std::shared_ptr<StartedOperation> operation(const Parts& parts, const Plan&,
                                              const Call& call) const override {
    return mpi_operation(parts, call);
  }
};

}  // namespace

const Family& mpi_family() {
  static const MpiFamily family;
  return family;
}

}  // namespace gradred
