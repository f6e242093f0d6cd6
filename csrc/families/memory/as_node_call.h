// Calls in the form that a node group carries out.
#pragma once

#include "calls/call.h"
#include "node/agreement/node_call.h"

namespace gradred {

// The call as the ranks of a host carry it out, without factors.
NodeCall node_call(const Call& call);

}  // namespace gradred
