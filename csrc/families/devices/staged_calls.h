// How a communicator carries out calls on arrays in device memory by plans that read host memory
// (staged.h), or that take the arrays through a workspace on all ranks' devices.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "calls/call.h"
#include "calls/parts.h"
#include "families/devices/staged.h"
#include "plan/plan.h"

namespace gradred {

bool is_staged(const Call& call, const Plan& plan);
void run_staged(const Parts& parts, const Call& call, const Plan& plan, WaitHook& hook);
// With the input copied to host memory before, and the result copied back after it, carries out the
// call by `run`, which blocks.
using RunOnHost = std::function<void(const Call&)>;
void run_on_copies(const Parts& parts, const Call& call, WaitHook& hook, const RunOnHost& run);
// `plan`: nullptr if the MPI carries the call out.
std::shared_ptr<StartedOperation> staged_operation(const Parts& parts, const Call& call,
                                                   const Plan* plan,
                                                   const StagedOperation::Make& make);

// In words, how those calls on arrays in device memory have gone that could go from device to
// device. Local.
std::string device_path(const Parts& parts);

}  // namespace gradred
