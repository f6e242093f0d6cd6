// Gathers and scatters: block r of the root's vector comes from rank r, or goes there. A scatter is
// a gather backwards: its rounds come in the reverse order, and sends and receives change places.
#include <algorithm>
#include <bit>
#include <vector>

#include "schedule/combinators.h"
#include "schedule/generators.h"

namespace gradred {
namespace {

// A rank's place in the tree: the root is 0, and the ranks after it follow, around the end.
struct Tree {
  int rank, size, root;

  int own() const { return (rank - root + size) % size; }
  int rank_at(int place) const { return (root + place) % size; }
  // The blocks of `count` places from `place` on. Spans never wrap around the end of the vector, so
  // there are one or two.
  std::vector<Span> blocks(int place, int count) const {
    const int first = rank_at(place), end = std::min(first + count, size);
    const int rest = first + count - end;
    std::vector<Span> spans = {
        work(static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first))};
    if (rest > 0) spans.push_back(work(0, static_cast<std::uint32_t>(rest)));
    return spans;
  }
};

// One message for each span, to the peer or from it.
void add(Round& round, bool sends, int peer, const std::vector<Span>& spans) {
  for (const Span& span : spans) round.push_back(sends ? send(peer, span) : recv(peer, span));
}

// In each round of a gather, half of the ranks that still have blocks send them to the rank
// `distance` before; the distance doubles.
Schedule binomial(Kind collective, int rank, int size, int root) {
  Schedule schedule = blank(collective, rank, size, size);
  schedule.root = root;
  const bool gathers = collective == Kind::kGather;
  const int steps = std::bit_width(static_cast<unsigned>(size - 1));
  schedule.rounds = Rounds(steps, [=, tree = Tree{rank, size, root}](int step) {
    const int distance = 1 << (gathers ? step : steps - 1 - step), own = tree.own();
    Round round;
    if (own % (2 * distance) == distance) {
      add(round, gathers, tree.rank_at(own - distance),
          tree.blocks(own, std::min(distance, size - own)));
    } else if (own % (2 * distance) == 0 && own + distance < size) {
      const int child = own + distance;
      add(round, !gathers, tree.rank_at(child),
          tree.blocks(child, std::min(distance, size - child)));
    }
    return round;
  });
  return schedule;
}

Schedule linear(Kind collective, int rank, int size, int root) {
  Schedule schedule = blank(collective, rank, size, size);
  schedule.root = root;
  const bool gathers = collective == Kind::kGather;
  Round round;
  for (int place = 1; place < size; ++place) {
    const int other = (root + place) % size;
    if (rank == root) add(round, !gathers, other, {work(static_cast<std::uint32_t>(other))});
    if (rank == other) add(round, gathers, root, {work(static_cast<std::uint32_t>(other))});
  }
  if (size > 1) schedule.rounds = std::vector<Round>{round};
  return schedule;
}

}  // namespace

// Binomial gather: blocks move up a binomial tree, and ever more of them in each message.
// Cost: ceil(lg p) alpha + (p-1)/p n beta.
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication", IJHPCA 2005.
Schedule binomial_gather(int rank, int size, int root) {
  return binomial(Kind::kGather, rank, size, root);
}
Schedule binomial_scatter(int rank, int size, int root) {
  return binomial(Kind::kScatter, rank, size, root);
}

// Linear gather: all ranks send their blocks to the root at once, and no block moves twice.
// Cost: alpha + (p-1)/p n beta, and a gap for each further message at the root.
// Source: as above.
Schedule linear_gather(int rank, int size, int root) {
  return linear(Kind::kGather, rank, size, root);
}
Schedule linear_scatter(int rank, int size, int root) {
  return linear(Kind::kScatter, rank, size, root);
}

}  // namespace gradred
