// An allreduce whose tree of sums is the same for every split of the leaves among ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"

namespace gradred {

// The schedule of a rank. `leaves`: how many each rank has, at least one together. Each rank gives
// its parts (base/leaf_tree.h). `chunks` is 1: every rank gets all parts and adds them up. Or it is
// the number of ranks: each rank does so for its chunk, and passes the sum on.
// Cost: with at most m parts a rank, alpha + (p-1)mn beta + pmn gamma in one chunk; 2 alpha +
// (m+1)(p-1)/p n beta + mn gamma in p chunks.
Schedule leaf_tree(int rank, std::vector<int> leaves, std::uint32_t chunks);

// Whether a schedule with leaves can be one.
bool fits_leaves(const Schedule& schedule);
inline constexpr std::string_view kLeavesMustBe =
    "leaves are those of an allreduce from an input buffer: a number for each rank, and not all 0";

// The number of vectors in a rank's input buffer.
std::size_t vectors_of_input(const Schedule& schedule);

}  // namespace gradred
