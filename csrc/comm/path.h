// Schedules over the MPI underneath, for one communicator: runners, kept between calls.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/call.h"
#include "comm/scheduled.h"
#include "plan/plan.h"
#include "transport/faulty.h"
#include "transport/mpi.h"
#include "transport/tracing.h"

namespace gradred {

// What stands between the executor and the MPI.
struct Decorations {
  Trace* trace = nullptr;  // must outlive the path
  std::optional<FaultSpec> fault;
};

class SchedulePath {
 public:
  SchedulePath(mpi::Handle comm, int rank, int size, TagSpace tags, const Decorations& decorations);

  MpiTransport& transport() { return transport_; }
  // A runner for this call, new or used before; give it back after use.
  std::unique_ptr<Runner> take(const Call& call, const Plan& plan);
  void give_back(std::unique_ptr<Runner> runner);

 private:
  Transport& decorate(const Decorations& decorations);
  std::shared_ptr<const Schedule> schedule_for(const Call& call, const Plan& plan) const;

  MpiTransport transport_;
  std::optional<FaultyTransport> faulty_;
  std::optional<TracingTransport> tracing_;
  Transport& outermost_;
  std::mutex mutex_;
  std::list<std::unique_ptr<Runner>> kept_;  // the last one given back first
};

Collective collective_of(Kind kind);

}  // namespace gradred
