// Measures which plan is the fastest for calls on arrays in device memory.
#pragma once

#include "calls/parts.h"
#include "comm/kept_device_plans.h"
#include "memory/memory.h"

namespace gradred {

// Blocking and collective, at the first call on arrays in device memory. The communicator's
// PlanChoice gets what this measures, or what rank 0 has in its file.
void measure_device_plans(const Parts& parts, Memory memory, const RunCall& run);

}  // namespace gradred
