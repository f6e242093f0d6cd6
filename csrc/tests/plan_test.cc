// The selector with sources of plans made for the test: plan/ alone, without any family.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/errors.h"
#include "expect.h"
#include "plan/cache.h"
#include "plan/selector.h"

namespace gradred {
namespace {

using testing::expect;

// Offers one plan, called like the source.
class One final : public PlanSource {
 public:
  One(std::string name, double seconds, std::string objection = "", bool one_order = false,
      bool for_every_call = false)
      : name_(std::move(name)),
        seconds_(seconds),
        objection_(std::move(objection)),
        one_order_(one_order),
        for_every_call_(for_every_call) {}

  std::string_view name() const override { return name_; }
  std::vector<std::string> plans(Kind) const override { return {name_}; }
  std::optional<std::string> why_not(const Question&, const Place&) const override {
    return objection_.empty() ? std::nullopt : std::optional(objection_);
  }
  std::vector<Plan> offers(const Question&, const Place&) const override {
    Plan plan{.source = this, .name = name_, .reason = "costs least", .one_order = one_order_};
    plan.seconds = seconds_;
    plan.for_every_call = for_every_call_;
    return {plan};
  }

 private:
  const std::string name_;
  const double seconds_;
  const std::string objection_;
  const bool one_order_, for_every_call_;
};

std::string error_of(PlanSources sources, const Question& question) {
  try {
    choose(sources, question, {.size = 4});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

void the_cheapest_plan_that_serves_is_chosen() {
  const One slow("slow", 2e-3), fast("fast", 1e-3), barred("barred", 1e-6, "it is barred");
  const PlanSource* const sources[] = {&slow, &fast, &barred};
  const Plan plan = choose(sources, {}, {.size = 4});
  expect(plan.source == &fast, "the cheapest is chosen");
  expect(plan.reason == "costs least: 1e+03 us; slow comes next with 2e+03 us", plan.reason);
  expect(plan.known_hash != 0 && plan.known_hash == plan.hash(), "it has its hash");
  expect(weigh(sources, {}, {.size = 4}).size() == 2, "those that cannot serve are left out");
}

void nothing_is_weighed_after_a_plan_for_every_call() {
  const One any("any", 2e-3, "", false, true), fast("fast", 1e-3);
  const PlanSource* const sources[] = {&any, &fast};
  expect(weigh(sources, {}, {.size = 4}).size() == 1, "the others are not asked");
  expect(choose(sources, {.plan = "fast"}, {.size = 4}).source == &fast, "unless they are named");
}

void a_named_plan_is_chosen_whatever_it_costs() {
  const One slow("slow", std::numeric_limits<double>::infinity()), fast("fast", 1e-3);
  const One barred("barred", 1e-6, "it is barred");
  const PlanSource* const sources[] = {&fast, &slow, &barred};
  expect(choose(sources, {.plan = "slow"}, {.size = 4}).source == &slow, "the named one");
  expect(
      error_of(sources, {.plan = "barred"}) == "plan 'barred' cannot serve this call: it is barred",
      "a named plan that cannot serve is an error with the reason");
  expect(error_of(sources, {.plan = "none"}) ==
             "no plan for allreduce is called 'none'. There are: fast, slow, barred",
         "an unknown name is an error with the names");
}

void one_order_leaves_out_plans_that_sum_in_another() {
  const One any("any", 1e-3), ordered("ordered", 2e-3, "", true);
  const PlanSource* const sources[] = {&any, &ordered};
  expect(choose(sources, {.one_order = true}, {.size = 4}).source == &ordered, "a sum");
  const Question moves{.collective = Kind::kBcast, .one_order = true};
  expect(choose(sources, moves, {.size = 4}).source == &any, "a broadcast has no order");
}

void the_cache_chooses_once_for_equal_calls() {
  PlanCache cache;
  int made = 0;
  const auto make = [&] {
    ++made;
    return Plan{.name = "plan " + std::to_string(made)};
  };
  const PlanKey key{Kind::kAllreduce, DType::kFloat32, Op::kSum, 8, 0, "",
                    nullptr,          Wire::kNone,     true};
  PlanKey longer = key;
  longer.count = 9;
  expect(cache.get(key, make)->name == "plan 1", "the first call");
  expect(cache.get(longer, make)->name == "plan 2", "another length");
  expect(cache.get(key, make)->name == "plan 1", "the first one again");
  cache.clear();
  expect(cache.get(key, make)->name == "plan 3", "after clear() it is chosen anew");
}

}  // namespace
}  // namespace gradred

int main() {
  gradred::the_cheapest_plan_that_serves_is_chosen();
  gradred::nothing_is_weighed_after_a_plan_for_every_call();
  gradred::a_named_plan_is_chosen_whatever_it_costs();
  gradred::one_order_leaves_out_plans_that_sum_in_another();
  gradred::the_cache_chooses_once_for_equal_calls();
  return gradred::testing::report("plan_test");
}
