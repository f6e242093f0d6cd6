#include "families/messages/path.h"

#include <iterator>

#include "base/errors.h"

namespace gradred {
namespace {

constexpr std::size_t kMostKept = 64;

std::size_t work_count(const Call& call, int size) {
  return call.count * vector_counts(call.kind, size);
}

}  // namespace

SchedulePath::SchedulePath(mpi::Handle comm, int rank, int size, TagSpace tags, Trace* trace)
    : transport_(comm, rank, size, tags),
      outermost_(trace != nullptr ? static_cast<Transport&>(tracing_.emplace(transport_, *trace))
                                  : transport_) {}

std::unique_ptr<BoundPlan> SchedulePath::take(const Call& call, const Plan& plan) {
  const BoundPlanKey key = {
      call.kind,
      call.schedule ? std::string() : text_of(call.kind, plan.name, plan.parameters),
      call.schedule.get(),
      work_count(call, transport_.size()),
      plan.slices,
      call.dtype,
      call.op,
      !reads_callers_input(call),
      call.out.memory};
  return take(key, [&] { return schedule_for(call, plan); });
}

std::unique_ptr<BoundPlan> SchedulePath::take(const BoundPlanKey& key, const Make& make) {
  {
    const std::lock_guard lock(mutex_);
    for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
      if ((*kept)->key != key) continue;
      std::unique_ptr<BoundPlan> bound_plan = std::move(*kept);
      kept_.erase(kept);
      keep_memory();
      return bound_plan;
    }
  }
  return bind_plan(key, make(), outermost_);
}

void SchedulePath::give_back(std::unique_ptr<BoundPlan> bound_plan) {
  std::list<std::unique_ptr<BoundPlan>> dropped;  // freed after the lock is released
  const std::lock_guard lock(mutex_);
  kept_.push_front(std::move(bound_plan));
  while (kept_.size() > kMostKept || !keep_memory()) {
    dropped.splice(dropped.begin(), kept_, std::prev(kept_.end()));
  }
}

// With mutex_ held: returns whether the cache may keep this much memory.
bool SchedulePath::keep_memory() {
  std::size_t bytes = 0;
  for (const auto& bound_plan : kept_) bytes += bound_plan->bytes_held();
  return memory_.keep(bytes);
}

std::shared_ptr<const Schedule> SchedulePath::schedule_for(const Call& call,
                                                           const Plan& plan) const {
  const Kind collective = call.kind;
  if (!call.schedule) {
    return std::make_shared<const Schedule>(make_schedule(collective, plan.name, transport_.rank(),
                                                          transport_.size(), plan.parameters));
  }
  const Schedule& own = *call.schedule;
  if (own.collective != collective || own.rank != transport_.rank() ||
      own.size != transport_.size()) {
    throw UsageError(
        "the schedule '" + own.name + "' is for rank " + std::to_string(own.rank) + " of " +
        std::to_string(own.size) + " and " + std::string(schedules_name(own.collective)) +
        ", this is rank " + std::to_string(transport_.rank()) + " of " +
        std::to_string(transport_.size()) + " and " + std::string(schedules_name(collective)));
  }
  return call.schedule;
}

}  // namespace gradred
