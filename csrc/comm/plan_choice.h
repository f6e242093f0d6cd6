// Which plan a call of one communicator gets: a function of what the ranks have agreed on alone.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "comm/call.h"
#include "comm/device_plans.h"
#include "plan/cache.h"
#include "plan/figures.h"
#include "plan/plan.h"

namespace gradred {

class PlanChoice {
 public:
  // What every call asks for that names no plan: a name and a number of slices; none: whatever
  // costs least. This rank's wish until set-up, then rank 0's.
  struct Wish {
    std::string plan{};
    std::string device_plan{};  // the same of calls on arrays in devices' memory
    std::size_t slices = 0;
    bool one_order = false;  // lengths change no bits: Question::one_order
  };

  PlanChoice(int size, Wish wish);

  Place place;  // set-up finds out
  Wish wish;
  DevicePlans device_plans;  // where the wish is for what was measured
  bool measures_devices() const { return wish.device_plan == DevicePlans::kMeasured; }
  // Where the ranks are is known: from now on it decides.
  void settle(Figures figures);

  // Of every call that asks for none; null: it depends.
  const Plan* usual() const { return usual_.get(); }
  bool takes_usual(const Call& call) const {
    return usual_ != nullptr && call.plan == nullptr && !call.schedule && call.on_host();
  }
  // `waits`: who makes the call waits for it, so that it may begin with an announcement. Throws
  // UsageError where no plan can serve the call.
  std::shared_ptr<const Plan> plan_for(const Call& call, bool waits) const;
  // What follows the reason why a plan cannot serve the call: the setting that asks for that plan;
  // empty: the call does.
  std::string who_asks(const Call& call) const;

 private:
  std::size_t slices_asked(const Call& call) const;
  std::string_view plan_wished(const Call& call) const;
  std::string_view plan_asked(const Call& call) const;
  Question question(const Call& call, bool waits) const;

  const std::unique_ptr<PlanCache> plans_ = std::make_unique<PlanCache>();
  std::shared_ptr<const Plan> usual_;
};

}  // namespace gradred
