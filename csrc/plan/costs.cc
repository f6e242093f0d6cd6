#include "plan/costs.h"

namespace gradred {

std::string text_of(Collective collective, std::string_view algorithm,
                    const Parameters& parameters) {
  return std::string(name_of(collective)) + "/" + std::string(algorithm) + "/" +
         std::to_string(parameters.root) + "/" + std::to_string(parameters.k) + "/" +
         std::to_string(parameters.local) + "/" + parameters.inside + "/" + parameters.across;
}

const Cost& Costs::of(Collective collective, std::string_view algorithm,
                      const Parameters& parameters) {
  Parameters from_zero = parameters;
  from_zero.root = 0;
  const std::string key = text_of(collective, algorithm, from_zero);
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_.emplace(key, cost(collective, algorithm, from_zero, topology_)).first->second;
}

}  // namespace gradred
