// Reduce-scatter, allgather and broadcast on groups of ranks, where each group is a host. Every
// byte crosses once to each group that needs it. The crossing part has functions of its own,
// because the rest may go through a host's shared memory.
#pragma once

#include "schedule/combinators.h"

namespace gradred {

// The rank of `group` that carries a block across groups, to or from the block's owner. In the
// owner's group that is the owner itself. In a smaller group than the owner's, one rank may carry
// several blocks. With leaders the leader carries all blocks.
int carrier_of_block(const Lanes& lanes, int block, std::size_t group);

// The part of a reduce-scatter or allgather that crosses. Each block is sent between its carriers
// in its owner's group and in all other groups, in one round.
//   kReduceScatter  before: each rank holds its group's sums in the blocks that it carries;
//                   after: the owner's group holds the sums of all groups in its blocks
//   kAllgather      before: each rank holds the blocks of its group that it carries;
//                   after: it holds all blocks that it carries
Schedule blocks_across(Kind collective, int rank, const Lanes& lanes);
// The crossing part of a broadcast: each lane, from the root's group, in which each rank holds the
// vector.
Schedule bcast_across(int rank, const Lanes& lanes, int root);

// The whole collective, with messages inside the groups.
Schedule blocks_on_groups(Kind collective, int rank, const Lanes& lanes);
Schedule bcast_on_groups(int rank, const Lanes& lanes, int root);

}  // namespace gradred
