#include "plan/costs.h"

namespace gradred {

std::string text_of(Kind collective, std::string_view algorithm, const Parameters& parameters) {
  std::string groups;
  for (const int group : parameters.groups) groups += std::to_string(group) + ",";
  return std::string(schedules_name(collective)) + "/" + std::string(algorithm) + "/" +
         std::to_string(parameters.root) + "/" + std::to_string(parameters.k) + "/" +
         std::to_string(parameters.local) + "/" + groups + std::to_string(parameters.leaders) +
         "/" + parameters.inside + "/" + parameters.across + "/" +
         std::string(name_of(parameters.wire));
}

const Cost& Costs::of(Kind collective, std::string_view algorithm, const Parameters& parameters) {
  Parameters from_zero = parameters;
  from_zero.root = 0;
  const std::string key = text_of(collective, algorithm, from_zero);
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, cost(collective, algorithm, from_zero, topology_)).first->second;
}

const Cost& Costs::of_crossing(Kind collective, const Parameters& parameters) {
  Parameters from_zero = parameters;
  from_zero.root = 0;
  const std::string key = "across groups/" + text_of(collective, "hierarchical", from_zero);
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, cost_across_groups(collective, from_zero, topology_)).first->second;
}

}  // namespace gradred
