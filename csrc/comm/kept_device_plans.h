// How long calls on arrays in device memory take by each plan. Rank 0 keeps these figures in a file
// for later processes.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "calls/call.h"
#include "calls/device_plans.h"
#include "calls/parts.h"
#include "plan/device_figures.h"

namespace gradred {

// Carries out one blocking call.
using RunCall = std::function<void(const Call& call)>;

// Collective, like the next function. Returns where the ranks are and what they compare, without
// sizes.
DeviceFigures device_place(const Parts& parts, DeviceMemory& memory,
                           const DevicePlans::Candidates& candidates, const RunCall& run);
// Whether rank 0's file has such figures for these lengths. If so, all ranks get their sizes.
bool recall_device_plans(const Parts& parts, DeviceFigures& figures,
                         const DevicePlans::Candidates& candidates,
                         std::span<const std::size_t> lengths, const RunCall& run);
void keep_device_plans(const Parts& parts, const DeviceFigures& figures);

}  // namespace gradred
