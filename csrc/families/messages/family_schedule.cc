#include "families/messages/family_schedule.h"

#include <algorithm>

#include "calls/plan_choice.h"
#include "families/messages/comm_operation.h"
#include "families/messages/message_operations.h"

namespace gradred {
namespace {

constexpr std::size_t kSmallestSlice = std::size_t{1} << 20;

// How many slices a vector is cut into. Collectives with blocks allow only one.
std::size_t slices_of(const Question& question, const Cost& cost, const CostModel& model) {
  if (question.slices > 0) return std::min(question.slices, question.most_slices);
  const bool cut = can_be_cut(question.collective);
  const std::size_t most =
      cut ? std::clamp<std::size_t>(question.bytes / kSmallestSlice, 1,
                                    std::min(kMostSlices, question.most_slices))
          : 1;
  return cost.best_slices(question.bytes, model, most);
}

class ScheduleFamily final : public Family {
 public:
  std::string_view name() const override { return "schedule"; }
  std::string_view about() const override {
    return "messages between ranks, by an algorithm that is data";
  }
  std::string_view medium() const override { return "messages"; }
  const char* traced_as() const override { return nullptr; }
  bool sends(const Place&) const override { return true; }

  std::vector<std::string> plans(Kind collective) const override {
    std::vector<std::string> names;
    for (const Algorithm& algorithm : algorithms()) {
      if (algorithm.collective == collective && algorithm.name != kHierarchical) {
        names.emplace_back(algorithm.name);
      }
    }
    return names;
  }

  std::optional<std::string> why_not(const Question&, const Place& place) const override {
    if (place.size == 1) return "one rank sends no messages";
    if (!place.why_no_messages.empty()) return place.why_no_messages;
    return std::nullopt;
  }

  std::vector<Plan> offers(const Question& question, const Place& place) const override {
    if (question.own != nullptr) return {own(question)};
    std::vector<Plan> found;
    for (const std::string& name : plans(question.collective)) {
      if (question.plan.empty() || question.plan == name) {
        found.push_back(offer(name, {}, question, place));
      }
    }
    return found;
  }

  ArrayAccess access(const Call& call) const override {
    const Memory result = call.out.memory;
    const bool reads =
        call.input_memory() == result && (result.is_host() || result.device()->reduces());
    return direct_or(ArrayAccess::kPieces, call, reads);
  }
  void run(const Parts& parts, const Plan& plan, const Call& call, WaitHook& hook) const override {
    parts.messages.run(call, plan, hook);
  }
  std::shared_ptr<StartedOperation> operation(const Parts& parts, const Plan& plan,
                                              const Call& call) const override {
    return parts.messages.start(call, plan);
  }

 private:
  Plan offer(const std::string& name, Parameters parameters, const Question& question,
             const Place& place) const {
    parameters.root = question.root;
    const Cost& cost = place.costs->of(question.collective, name, parameters);
    const Figures& figures = place.costs->figures();
    const std::size_t bytes = question.vector_bytes(place.size);
    Plan plan{.source = this, .name = name, .label = name, .parameters = parameters};
    plan.slices = slices_of(question, cost, figures.model);
    plan.seconds =
        cost.seconds(bytes, figures.model, plan.slices) * figures.correction(bytes, plan.label);
    plan.specification = {name, parameters, ""};
    // Where hosts sum first, schedules have another order than plan hierarchical.
    const bool hosts_sum =
        place.sums_on_hosts() && has_algorithm(question.collective, kHierarchical);
    plan.one_order = !hosts_sum && find_algorithm(question.collective, name).one_order;
    plan.reason =
        question.plan.empty() ? "costs least (figures " + figures.source() + ")" : "as asked";
    return plan;
  }

  Plan own(const Question& question) const {
    Plan plan{.source = this, .name = question.own->name, .reason = "the caller's own schedule"};
    plan.slices = std::clamp<std::size_t>(question.slices, 1, question.most_slices);
    if (!question.own->leaves.empty()) plan.slices = 1;  // the vectors of an input are whole
    return plan;
  }
};

}  // namespace

const Family& schedule_family() {
  static const ScheduleFamily family;
  return family;
}

}  // namespace gradred
