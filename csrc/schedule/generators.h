// The generators: pure functions from rank and size (and a parameter) to one rank's schedule. They
// are cheap for any number of ranks, since the schedule makes each round only when it is used.
//
// In the costs, p is the number of ranks, n the bytes of the vector, alpha the seconds per round,
// beta per byte sent or received, gamma per byte reduced, and lg the logarithm to base 2. cost.h
// has the whole model, with a time for further messages of a round. The cost of a folded generator
// is that of sizes that need no folding. Folding an allreduce onto a power of two adds 2 alpha + 2n
// beta + n gamma.
#pragma once

#include "schedule/schedule.h"

namespace gradred {

Schedule ring_reduce_scatter(int rank, int size);
Schedule ring_allgather(int rank, int size);
Schedule ring(int rank, int size);

Schedule circulant_reduce_scatter(int rank, int size);
Schedule circulant_allgather(int rank, int size);
Schedule circulant(int rank, int size);

Schedule direct_reduce_scatter(int rank, int size);
Schedule direct_allgather(int rank, int size);
Schedule direct(int rank, int size);

// Allreduce whose messages are all encoded.
Schedule compressed(Wire wire, int rank, int size);

Schedule recursive_halving(int rank, int size);
Schedule recursive_doubling_allgather(int rank, int size);
Schedule rabenseifner(int rank, int size);
Schedule swing(int rank, int size);
Schedule recursive_doubling(int rank, int size);
Schedule recursive_multiplying(int rank, int size, int k);

Schedule binomial_gather(int rank, int size, int root);
Schedule binomial_scatter(int rank, int size, int root);
Schedule linear_gather(int rank, int size, int root);
Schedule linear_scatter(int rank, int size, int root);

// `collective`: an inclusive or an exclusive scan.
Schedule linear_scan(Kind collective, int rank, int size);
Schedule pipelined_scan(Kind collective, int rank, int size);
Schedule recursive_doubling_scan(Kind collective, int rank, int size);

Schedule binomial_bcast(int rank, int size, int root);
Schedule scatter_allgather_bcast(int rank, int size, int root);

}  // namespace gradred
