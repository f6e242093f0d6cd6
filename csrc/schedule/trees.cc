// Broadcasts. They are written for root 0; for another root the ranks are renumbered.
#include <algorithm>
#include <bit>
#include <vector>

#include "schedule/combinators.h"
#include "schedule/generators.h"

namespace gradred {
namespace {

// Rank i of `generator` is rank (root + i) mod size.
Schedule rooted(int rank, int size, int root, Schedule (*generator)(int, int)) {
  std::vector<int> members;
  for (int i = 0; i < size; ++i) members.push_back((root + i) % size);
  return embed(generator((rank - root + size) % size, size), members, size);
}

// Sends down a binomial tree, the farthest ranks first: in each round, ranks that have data send to
// the rank `distance` further on. `part` returns the chunks for the subtree of `ranks` ranks that
// begins at rank `first`.
template <class Part>
Schedule binomial(int rank, int size, int chunks, Part part) {
  Schedule schedule = blank(Kind::kBcast, rank, size, chunks);
  const int steps = std::bit_width(static_cast<unsigned>(size - 1));
  schedule.rounds = Rounds(steps, [=](int step) {
    const int distance = 1 << (steps - 1 - step);
    const int to = rank + distance, from = rank - distance, subtree = 2 * distance;
    Round round;
    if (rank % subtree == 0 && to < size) {
      round.push_back(send(to, part(to, std::min(distance, size - to))));
    } else if (rank % subtree == distance) {
      round.push_back(recv(from, part(rank, std::min(distance, size - rank))));
    }
    return round;
  });
  return schedule;
}

Schedule whole(int rank, int size) {
  return binomial(rank, size, 1, [](int, int) { return work(0); });
}

// Rank 0 has all of it, in an array that is only read.
Schedule without_messages_to_root(Schedule schedule) {
  const Rounds all = schedule.rounds;
  schedule.rounds = Rounds(static_cast<int>(all.size()), [all, rank = schedule.rank](int step) {
    Round round = all[static_cast<std::size_t>(step)];
    std::erase_if(round, [rank](const Step& one) {
      return one.kind == StepKind::kRecv ? rank == 0 : one.kind == StepKind::kSend && one.peer == 0;
    });
    return round;
  });
  return schedule;
}

Schedule scattered(int rank, int size) {
  const Schedule scatter = binomial(rank, size, size, [](int first, int ranks) {
    return work(static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(ranks));
  });
  return then(scatter, without_messages_to_root(circulant_allgather(rank, size)), Kind::kBcast);
}

}  // namespace

// Binomial tree broadcast: sends the whole vector down the tree.
// Cost: ceil(lg p) alpha + n ceil(lg p) beta.
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication", IJHPCA 2005.
Schedule binomial_bcast(int rank, int size, int root) { return rooted(rank, size, root, whole); }

// Scatter down a binomial tree, then allgather.
// Cost: 2 ceil(lg p) alpha + 2(p-1)/p n beta.
// Source: Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor collective
// communication library (InterCom)", SHPCC 1994.
Schedule scatter_allgather_bcast(int rank, int size, int root) {
  return rooted(rank, size, root, scattered);
}

}  // namespace gradred
