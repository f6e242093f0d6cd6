// Plan "node": all ranks share memory, and the operations of their node group do the work.
#pragma once

#include "calls/family.h"

namespace gradred {

const Family& node_family();

}  // namespace gradred
