// What a schedule moves, and how long that takes in the alpha-beta-gamma model.
#pragma once

#include <cstddef>
#include <vector>

#include "schedule/schedule.h"

namespace gradred {

struct CostModel {
  double alpha = 0;  // seconds per round that has messages
  double beta = 0;   // seconds per byte sent or received, whichever is more
  double gamma = 0;  // seconds per byte reduced
};

// Of one rank; bytes.
struct Traffic {
  std::size_t messages = 0;  // sent
  std::size_t sent = 0, received = 0, reduced = 0;
};
Traffic traffic(const Schedule& schedule, std::size_t bytes);

// Seconds for a vector of `bytes` bytes: over the rounds, the sum of what the busiest rank needs.
// Rounds are taken to run in step; many messages in one round cost one alpha.
double cost(const std::vector<Schedule>& schedules, std::size_t bytes, const CostModel& model);

}  // namespace gradred
