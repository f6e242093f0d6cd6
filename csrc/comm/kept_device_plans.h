// What calls on arrays in devices' memory take by each plan, from one process to the next: rank 0
// keeps it in a file.
#pragma once

#include <cstddef>
#include <span>

#include "comm/call.h"
#include "comm/device_plans.h"
#include "plan/device_figures.h"

namespace gradred {

// All of them collective but the last. Where the ranks are and what they compare, without sizes.
DeviceFigures device_place(Communicator& comm, DeviceMemory& memory,
                           const DevicePlans::Candidates& candidates, WaitHook& hook);
// Whether rank 0's file has such figures for these lengths; then all ranks get their sizes.
bool recall_device_plans(Communicator& comm, DeviceFigures& figures,
                         const DevicePlans::Candidates& candidates,
                         std::span<const std::size_t> lengths, WaitHook& hook);
void keep_device_plans(const Communicator& comm, const DeviceFigures& figures);

}  // namespace gradred
