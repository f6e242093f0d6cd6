// Plans by which a library carries out whole calls on arrays in GPU memory (memory/collectives.h):
// NCCL, and gradred's kernels that wait for each other.
//
// They are used only if a call or GRADRED_DEVICE_PLAN names them. They need a GPU for each rank,
// which no rank knows of its peers before the call, and arrays in GPU memory on all ranks.
#pragma once

#include "calls/family.h"

namespace gradred {

Families library_families();

}  // namespace gradred
