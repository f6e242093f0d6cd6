// An allreduce down and up two trees at once, as NCCL has it, for simulation. It is not in the
// table of algorithms, since no plan over messages runs it.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace gradred {

// The schedules of all ranks, of which `local` in a row are on one host. Each of two trees reduces
// one half of the vector to its root and sends the result back, in `pieces` chunks one behind the
// other. Hosts form two binary trees, in which no host but one has children in both; the ranks of a
// host form a chain. Throws UsageError if the size is no multiple of `local`.
// Cost: (2 lg(p/local) + 2 local + pieces) rounds, 2 n beta for large numbers of pieces.
// Source: Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
// and scan", Parallel Computing 2009.
std::vector<Schedule> two_trees(int size, int local, int pieces);

}  // namespace gradred
