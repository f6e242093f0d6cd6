// Which plan a call of one communicator gets. This depends only on what the ranks have agreed on.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "calls/call.h"
#include "plan/cache.h"
#include "plan/figures.h"
#include "plan/plan.h"

namespace gradred {

inline constexpr std::string_view kHierarchical = "hierarchical";

// The plan by which ranks that do not all share memory compare their calls.
const char* plan_of_agreements(const Place& place);

// The call with its plan, and the signature of it that the ranks compare.
Call planned(const Call& call, const Plan& plan);
Signature planned_signature(const Call& call, const Plan& plan);

class PlanChoice {
 public:
  // What calls that name no plan ask for: a name and a number of slices. Empty: whatever costs
  // least. It is this rank's wish until set-up, then rank 0's.
  struct Wish {
    std::string plan{};
    std::string device_plan{};  // the same for calls on arrays in device memory
    std::size_t slices = 0;
    bool one_order = false;  // the length changes no bits: Question::one_order
  };

  // `sources`: of all plans, alive as long as this object.
  PlanChoice(int size, Wish wish, PlanSources sources);

  Place place;  // found by the set-up
  Wish wish;
  // Called once the places of the ranks are known: from now on they determine the choice.
  void settle(Figures figures);
  // For a communicator of the same ranks: from now on it chooses as `other` does.
  void settle_as(const PlanChoice& other);

  // The plan of every call that asks for none; nullptr: it depends on the call.
  const Plan* usual() const { return usual_.get(); }
  bool takes_usual(const Call& call) const {
    return usual_ != nullptr && call.plan == nullptr && !call.schedule && call.on_host();
  }
  // `waits`: the caller waits for the call, so that it may begin with an announcement. Throws
  // UsageError if no plan can serve the call.
  std::shared_ptr<const Plan> plan_for(const Call& call, bool waits) const;
  // A text that follows the reason why a plan cannot serve the call: the setting that asks for that
  // plan. Empty: the call itself asks for it.
  std::string who_asks(const Call& call) const;

 private:
  std::size_t slices_asked(const Call& call) const;
  std::string_view plan_wished(const Call& call) const;
  std::string_view plan_asked(const Call& call) const;
  Question question(const Call& call, bool waits) const;

  const PlanSources sources_;
  std::shared_ptr<PlanCache> plans_ = std::make_shared<PlanCache>();
  std::shared_ptr<const Plan> usual_;
};

}  // namespace gradred
