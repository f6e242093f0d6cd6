// Every family of plans. The selector, `gradred explain`, `gradred bench --plan all` and the
// documents all read this one table.
#pragma once

#include "calls/family.h"

namespace gradred {

Families plan_families();
PlanSources plan_sources();  // the same, as the selector takes them

}  // namespace gradred
