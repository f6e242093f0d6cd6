// Which plan serves a call: the one that it names, else the cheapest of those that can.
#pragma once

#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace gradred {

// All that can serve, the cheapest first. UsageError where no plan has the name, or none can serve
// the call, with the reason.
std::vector<Plan> weigh(Families families, const Question& question, const Place& place);
// The first of them.
Plan choose(Families families, const Question& question, const Place& place);

// The family that has a plan of this name for such calls; null: none.
const Family* family_of(Families families, Collective collective, std::string_view name);

}  // namespace gradred
