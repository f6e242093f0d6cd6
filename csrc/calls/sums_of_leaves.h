// Sums whose bits depend on no number of ranks (docs/results.md, level "ranks").
#pragma once

#include <cstdint>

#include "calls/call.h"

namespace gradred {

// The call, whose result is then that of a job with so many leaves (0: it has no such number) on
// any number of ranks. A sum without leaves of its own is one of a leaf from each rank, if the job
// has as many. Throws UsageError if the bits would depend on the number of ranks.
Call call_by_tree(const Call& call, int size, std::uint64_t leaves);

}  // namespace gradred
