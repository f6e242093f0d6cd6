// Runs the schedules of all ranks on a cluster in simulated time.
//
// A rank enters a round, and its processor starts the sends one after the other; each takes the
// send overhead. A message travels for the latency of its path and then occupies all links of its
// route for its length, at a speed that is max-min fair among the messages in flight. Messages from
// one rank to another follow each other. The receiver's processor takes the receive overhead for
// each message. When all messages of the round have completed, the processor runs the local steps,
// and the rank enters its next round. A message up to the rendezvous threshold is sent at once; if
// the receiver has not posted its receive when it arrives, it is copied later. A longer message
// waits for the receive, and its sender waits until it has arrived.
//
// Chunks are taken to be of equal length, as in cost.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/schedule.h"
#include "simulate/cluster.h"

namespace gradred {

struct SimulatedRun {
  double bytes = 0;        // of the vector
  std::size_t slices = 1;  // of the vector, each of which is an execution of the schedule
  std::uint64_t seed = 0;  // of the noise
  bool fold = true;        // simulate one of several ranks that are alike, where that is exact
};

struct Simulated {
  double seconds = 0;         // until the last rank has its result
  std::size_t ranks = 0;      // of the cluster
  std::size_t simulated = 0;  // ranks that were simulated, each for as many others
  std::size_t rounds = 0;     // of the rank that has most
  std::size_t messages = 0;   // of all ranks
  double across = 0;          // bytes that all ranks sent to other hosts
  std::size_t events = 0;     // steps of the simulation
};

// Simulates one schedule for each rank, in order. Throws UsageError if the cluster makes no sense,
// and ScheduleError if a schedule is not valid or the schedules wait for each other.
Simulated simulate(const std::vector<Schedule>& schedules, const Cluster& cluster,
                   const SimulatedRun& run);
// The same for a built-in algorithm, of which only the schedules that are simulated are made.
Simulated simulate(Kind collective, std::string_view name, const Parameters& parameters,
                   const Cluster& cluster, const SimulatedRun& run);

}  // namespace gradred
