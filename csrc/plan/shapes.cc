#include "plan/shapes.h"

#include <vector>

namespace gradred {

std::string text_of(Collective collective, std::string_view algorithm,
                    const Parameters& parameters) {
  return std::string(name_of(collective)) + "/" + std::string(algorithm) + "/" +
         std::to_string(parameters.root) + "/" + std::to_string(parameters.k) + "/" +
         std::to_string(parameters.local) + "/" + parameters.inside + "/" + parameters.across;
}

const Shape& Shapes::of(Collective collective, std::string_view algorithm,
                        const Parameters& parameters) {
  Parameters from_zero = parameters;
  from_zero.root = 0;
  const std::string key = text_of(collective, algorithm, from_zero);
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  const auto size = static_cast<int>(topology_.host_of.size());
  std::vector<Schedule> schedules;
  for (const int rank : ranks_that_stand_for_all(topology_)) {
    schedules.push_back(make_schedule(collective, algorithm, rank, size, from_zero));
  }
  return known_.emplace(key, shape_of(schedules, topology_, model_)).first->second;
}

}  // namespace gradred
