// Reduce-scatter, allgather and broadcast on groups of ranks, of which each is a host: every byte
// crosses once to each group that needs it. What crosses is a part of its own, as the rest goes
// through a host's memory.
#pragma once

#include "schedule/combinators.h"

namespace gradred {

// The rank of a group that carries a rank's block to that rank's own group, or from there: of its
// own group the rank itself. Of a larger group's blocks a rank may carry several. With leaders all
// blocks are carried by them.
int carrier_of_block(const Lanes& lanes, int block, std::size_t group);

// What of a reduce-scatter or allgather of blocks crosses: each block between its carriers, to all
// other groups or from them, in one round.
//   kReduceScatter  before it a rank holds the sums of its group in the blocks that it carries, and
//                   after it those of all in blocks of its group
//   kAllgather      before it a rank holds the blocks of its group that it carries, and after it
//                   all that it carries
Schedule blocks_across(Collective collective, int rank, const Lanes& lanes);
// And of a broadcast: each lane, from the root's group, of which each rank holds the vector.
Schedule bcast_across(int rank, const Lanes& lanes, int root);

// The whole, with messages inside the groups.
Schedule blocks_on_groups(Collective collective, int rank, const Lanes& lanes);
Schedule bcast_on_groups(int rank, const Lanes& lanes, int root);

}  // namespace gradred
