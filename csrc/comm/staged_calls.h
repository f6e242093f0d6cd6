// How a communicator carries out calls on arrays in a device's memory by plans that read the
// host's (staged.h), or that take them in a workspace of all ranks' devices.
#pragma once

#include <memory>
#include <string>

#include "comm/call.h"
#include "comm/staged.h"
#include "plan/plan.h"

namespace gradred {

class Communicator;

bool is_staged(const Call& call, const Plan& plan);
void run_staged(Communicator& comm, const Call& call, const Plan& plan, WaitHook& hook);
// `plan` of null: the MPI carries it out.
std::shared_ptr<StartedOperation> staged_operation(Communicator& comm, const Call& call,
                                                   const Plan* plan,
                                                   const StagedOperation::Make& make);

// In words, how calls on arrays in devices' memory that could go from device to device have gone.
// Local.
std::string device_path(Communicator& comm);

}  // namespace gradred
