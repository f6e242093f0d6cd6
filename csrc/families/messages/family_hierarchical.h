// Plan "hierarchical": through shared memory inside each host, and by a schedule over messages
// between hosts. If hosts share no memory, the whole plan is one schedule.
#pragma once

#include "calls/family.h"

namespace gradred {

const Family& hierarchical_family();

}  // namespace gradred
