// How long calls on arrays in device memory take by each plan. Rank 0 keeps these figures in a file
// for later processes.
#pragma once

#include <cstddef>
#include <span>

#include "comm/call.h"
#include "comm/device_plans.h"
#include "plan/device_figures.h"

namespace gradred {

// Collective, like the next function. Returns where the ranks are and what they compare, without
// sizes.
DeviceFigures device_place(Communicator& comm, DeviceMemory& memory,
                           const DevicePlans::Candidates& candidates, WaitHook& hook);
// Whether rank 0's file has such figures for these lengths. If so, all ranks get their sizes.
bool recall_device_plans(Communicator& comm, DeviceFigures& figures,
                         const DevicePlans::Candidates& candidates,
                         std::span<const std::size_t> lengths, WaitHook& hook);
void keep_device_plans(const Communicator& comm, const DeviceFigures& figures);

}  // namespace gradred
