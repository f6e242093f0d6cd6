// Selects the plan for a call: the one that it names, else the cheapest of those that can serve it.
#pragma once

#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace gradred {

// Returns all plans that can serve the call, the cheapest first. Throws UsageError, with the
// reason, if no plan has the name or none can serve the call.
std::vector<Plan> weigh(PlanSources sources, const Question& question, const Place& place);
// Returns the first plan of weigh().
Plan choose(PlanSources sources, const Question& question, const Place& place);

// Returns the source that has a plan of this name for such calls, or nullptr.
const PlanSource* source_of(PlanSources sources, Kind collective, std::string_view name);

}  // namespace gradred
