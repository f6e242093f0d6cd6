// Schedules over the MPI underneath, for one communicator. Bound plans are cached between calls.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "calls/call.h"
#include "families/messages/kept_memory.h"
#include "families/messages/scheduled.h"
#include "plan/plan.h"
#include "transport/mpi_transport.h"
#include "transport/tracing.h"

namespace gradred {

class SchedulePath {
 public:
  // `trace`: nullptr, or what records messages; the caller keeps it alive as long as the path.
  SchedulePath(mpi::Handle comm, int rank, int size, TagSpace tags, Trace* trace);

  MpiTransport& transport() { return transport_; }
  // A bound plan for this call, new or cached. The caller gives it back after use.
  std::unique_ptr<BoundPlan> take(const Call& call, const Plan& plan);
  using Make = std::function<std::shared_ptr<const Schedule>()>;
  std::unique_ptr<BoundPlan> take(const BoundPlanKey& key, const Make& make);
  void give_back(std::unique_ptr<BoundPlan> bound_plan);

 private:
  bool keep_memory();
  std::shared_ptr<const Schedule> schedule_for(const Call& call, const Plan& plan) const;

  MpiTransport transport_;
  std::optional<TracingTransport> tracing_;
  Transport& outermost_;
  std::mutex mutex_;
  std::list<std::unique_ptr<BoundPlan>> kept_;  // cached; the last one given back first
  KeptMemory memory_;                           // of these
};

}  // namespace gradred
