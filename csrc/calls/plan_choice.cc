#include "calls/plan_choice.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "calls/mpi_handles.h"
#include "plan/selector.h"
#include "transport/mpi_transport.h"

namespace gradred {
namespace {

// The plan for calls of which nothing is known. On one host it depends on few words, which are the
// same for most communicators of a process, so the last one is kept, unless something was measured.
std::shared_ptr<const Plan> first_choice(PlanSources sources, const Place& place) {
  struct Kept {
    const PlanSource* const* sources = nullptr;
    int size = 0;
    std::string why_no_memory, why_no_messages, why_no_mpi;
    std::shared_ptr<const Plan> plan;
    bool operator==(const Kept& other) const {
      return sources == other.sources && size == other.size &&
             why_no_memory == other.why_no_memory && why_no_messages == other.why_no_messages &&
             why_no_mpi == other.why_no_mpi;
    }
  };
  const auto make = [&] { return std::make_shared<const Plan>(choose(sources, {}, place)); };
  if (place.topology.hosts > 1 || place.costs->figures().measured()) return make();
  static std::mutex mutex;
  static auto* const last = new Kept;
  Kept wanted{sources.data(),        place.size,       place.why_no_memory,
              place.why_no_messages, place.why_no_mpi, nullptr};
  const std::lock_guard lock(mutex);
  if (*last == wanted) return last->plan;
  wanted.plan = make();
  *last = std::move(wanted);
  return last->plan;
}

}  // namespace

const char* plan_of_agreements(const Place& place) {
  return place.hosts_share_memory() ? kHierarchical.data() : "recursive_doubling";
}

Call planned(const Call& call, const Plan& plan) {
  Call planned = call;
  planned.path = plan.hash();
  return planned;
}

Signature planned_signature(const Call& call, const Plan& plan) {
  return planned(call, plan).signature();
}

// Until settle(), all ranks are assumed to be on one host, and no link is measured.
PlanChoice::PlanChoice(int size, Wish asked, PlanSources sources)
    : wish(std::move(asked)), sources_(sources) {
  place.size = size;
  place.topology = Topology::of(std::vector<int>(static_cast<std::size_t>(size), 0));
  place.costs = std::make_shared<Costs>(place.topology, assumed_figures());
}

// What the settings ask for, but no more slices than elements.
std::size_t PlanChoice::slices_asked(const Call& call) const {
  const bool cut = can_be_cut(call.kind);
  if (!cut || wish.slices == 0) return cut ? 0 : 1;
  return std::min(wish.slices, std::max<std::size_t>(call.count, 1));
}

std::string_view PlanChoice::plan_wished(const Call& call) const {
  return call.on_host() || wish.device_plan.empty() ? wish.plan : wish.device_plan;
}

// A plan that is set for every call applies to the calls that have it. A plan that a call names
// itself applies to that call.
std::string_view PlanChoice::plan_asked(const Call& call) const {
  if (call.plan != nullptr) return call.plan;
  const Kind collective = call.kind;
  const std::string_view wished = plan_wished(call);
  const bool means_it =
      call.kind == Kind::kAllreduce || source_of(sources_, collective, wished) != nullptr;
  return means_it ? wished : std::string_view();
}

void PlanChoice::settle(Figures figures) {
  place.costs = std::make_shared<Costs>(place.topology, std::move(figures));
  plans_->clear();  // cached plans are for another place
  if (place.size > 1 && !wish.plan.empty()) return;
  auto plan = first_choice(sources_, place);
  if (plan->for_every_call) usual_ = std::move(plan);
}

void PlanChoice::settle_as(const PlanChoice& other) {
  place = other.place;
  wish = other.wish;
  plans_ = other.plans_;
  usual_ = other.usual_;
}

Question PlanChoice::question(const Call& call, bool waits) const {
  const TagSpace tags = TagSpace::make(0, largest_tag());
  Question question{.collective = call.kind,
                    .bytes = call.count * size_of(call.dtype),
                    .plan = plan_asked(call),
                    .own = call.schedule.get(),
                    .slices = slices_asked(call),
                    .most_slices = tags.most_slices(),
                    .root = call.root,
                    .mpi_may_carry = waits && mpi_handles(combined(call.op), call.dtype),
                    .one_order = wish.one_order,
                    .wire = place.topology.hosts > 1 ? call.wire : Wire::kNone};
  if (place.size == 1) question.plan = {}, question.own = nullptr;
  if (question.own != nullptr && !place.why_no_messages.empty()) {
    throw UsageError(place.why_no_messages);  // schedules of the caller's own need messages
  }
  return question;
}

std::shared_ptr<const Plan> PlanChoice::plan_for(const Call& call, bool waits) const {
  const PlanKey key = {.kind = call.kind,
                       .dtype = call.dtype,
                       .op = call.op,
                       .count = call.count,
                       .root = call.root,
                       .plan = call.plan != nullptr ? call.plan : plan_wished(call),
                       .own = call.schedule,
                       .wire = call.wire,
                       .waits = waits};
  return plans_->get(key, [&] { return choose(sources_, question(call, waits), place); });
}

std::string PlanChoice::who_asks(const Call& call) const {
  const std::string_view wished = plan_asked(call);
  if (call.plan != nullptr || call.schedule || wished.empty()) return {};
  const bool of_devices = !call.on_host() && !wish.device_plan.empty();
  const std::string knob = of_devices ? "GRADRED_DEVICE_PLAN" : "GRADRED_PLAN";
  return ". It is " + knob + " that asks for " + std::string(wished);
}

}  // namespace gradred
