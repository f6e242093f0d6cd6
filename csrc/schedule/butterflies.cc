// Algorithms in which ranks exchange in pairs, or k at a time. They serve powers of two (or
// products of factors up to k); other sizes are folded.
#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <vector>

#include "schedule/combinators.h"
#include "schedule/generators.h"

namespace gradred {
namespace {

// The peer of a rank in step s of lg(size). Any pairing is valid in which ranks whose exchanges
// have been alike so far meet each other later.
using Pairing = int (*)(int rank, int step, int size);

int nearest_first(int rank, int step, int) { return rank ^ (1 << step); }
int farthest_first(int rank, int step, int size) { return rank ^ (size >> (step + 1)); }

// Distances 1, -1, 3, -5, 11, ... (sums of powers of -2), in opposite directions for even and odd
// ranks. On a torus the paths are shorter than with powers of two.
int swinging(int rank, int step, int size) {
  int distance = 0;
  for (int i = 0, power = 1; i <= step; ++i, power *= -2) distance += power;
  const int peer = rank + (rank % 2 == 0 ? distance : -distance);
  return (peer % size + size) % size;
}

// The chunk that a rank has left when half of the vector is given away in each step. Its binary
// digits say in which steps the path from rank 0 to the rank changes sides.
std::uint32_t place(int rank, int size, Pairing pairing) {
  for (int chunk = 0;; ++chunk) {
    int reached = 0;
    for (int step = 0, half = size / 2; half > 0; ++step, half /= 2) {
      if ((chunk & half) != 0) reached = pairing(reached, step, size);
    }
    if (reached == rank) return static_cast<std::uint32_t>(chunk);
  }
}

// In each step, sends one half of what is left and reduces the other.
Schedule halving(int rank, int size, Pairing pairing) {
  Schedule schedule = blank(Kind::kReduceScatterBlock, rank, size, size, size / 2);
  const std::uint32_t mine = place(rank, size, pairing);
  const int steps = std::countr_zero(static_cast<unsigned>(size));
  schedule.rounds = Rounds(steps, [=](int step) -> Round {
    const auto run = static_cast<std::uint32_t>(size >> (step + 1));
    const int peer = pairing(rank, step, size);
    const std::uint32_t kept = mine / run * run, given = kept ^ run;
    const Span inbox = scratch(0, kept, run);
    return {send(peer, work(given, run)), recv(peer, inbox), reduce(inbox, work(kept, run))};
  });
  return schedule;
}

// The steps of halving() in reverse: each step doubles what the rank holds.
Schedule doubling(int rank, int size, Pairing pairing) {
  Schedule schedule = blank(Kind::kAllgather, rank, size, size);
  const std::uint32_t mine = place(rank, size, pairing);
  const int steps = std::countr_zero(static_cast<unsigned>(size));
  schedule.rounds = Rounds(steps, [=](int step) -> Round {
    const std::uint32_t run = std::uint32_t{1} << step;
    const int peer = pairing(rank, steps - 1 - step, size);
    const std::uint32_t held = mine / run * run;
    return {send(peer, work(held, run)), recv(peer, work(held ^ run, run))};
  });
  return schedule;
}

template <Pairing pairing>
Schedule halving_and_doubling(int rank, int size) {
  return then(halving(rank, size, pairing), doubling(rank, size, pairing), Kind::kAllreduce);
}

int power_of_two_within(int size) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
}

// `size` as a product of factors of at most k, the largest first; empty if there is no such
// product.
std::vector<int> digits(int size, int k) {
  std::vector<int> factors;
  for (int factor = std::min(k, size); factor > 1;) {
    if (size % factor == 0) {
      factors.push_back(factor);
      size /= factor;
    } else {
      --factor;
    }
  }
  return size == 1 ? factors : std::vector<int>{};
}

// Ranks that differ in one digit exchange all they have. Each then adds up in the order of the
// digit, so that all build the same sum.
Schedule multiplying(int rank, int size, const std::vector<int>& factors) {
  Schedule schedule = blank(Kind::kAllreduce, rank, size, 1);
  const int widest = factors.empty() ? 1 : *std::max_element(factors.begin(), factors.end());
  schedule.scratch_slots = static_cast<std::uint32_t>(widest - 1);
  schedule.rounds = Rounds(static_cast<int>(factors.size()), [=](int step) {
    const auto place = factors.begin() + step;
    const int factor = *place;
    const int distance = std::accumulate(factors.begin(), place, 1, std::multiplies<>());
    const int digit = rank / distance % factor, zero = rank - digit * distance;
    Round round, reductions;
    for (int other = 0; other < factor; ++other) {
      if (other == digit) continue;
      const auto slot = static_cast<std::uint32_t>(other < digit ? other : other - 1);
      round.push_back(send(zero + other * distance, work(0)));
      round.push_back(recv(zero + other * distance, scratch(slot, 0)));
      if (0 < other && other < digit) reductions.push_back(reduce(scratch(slot, 0), scratch(0, 0)));
      if (other == digit + 1 && digit > 0) reductions.push_back(reduce(scratch(0, 0), work(0)));
      if (other > digit) reductions.push_back(reduce(scratch(slot, 0), work(0)));
    }
    if (digit == factor - 1) reductions.push_back(reduce(scratch(0, 0), work(0)));
    round.insert(round.end(), reductions.begin(), reductions.end());
    return round;
  });
  return schedule;
}

}  // namespace

// Recursive halving: the farthest ranks first, so that chunk r ends at rank r.
// Cost: lg p alpha + (p-1)/p n beta + (p-1)/p n gamma.
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication", IJHPCA 2005.
Schedule recursive_halving(int rank, int size) {
  return folded(rank, size, power_of_two_within(size),
                [](int r, int p) { return halving(r, p, farthest_first); });
}

// Recursive doubling allgather: the nearest ranks first.
// Cost: lg p alpha + (p-1)/p n beta.
// Source: as above.
Schedule recursive_doubling_allgather(int rank, int size) {
  return folded(rank, size, power_of_two_within(size),
                [](int r, int p) { return doubling(r, p, farthest_first); });
}

// Rabenseifner: halving and doubling, the largest messages between the nearest ranks.
// Cost: 2 lg p alpha + 2(p-1)/p n beta + (p-1)/p n gamma.
// Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
Schedule rabenseifner(int rank, int size) {
  return folded(rank, size, power_of_two_within(size), halving_and_doubling<nearest_first>);
}

// Swing: halving and doubling along a torus.
// Cost: 2 lg p alpha + 2(p-1)/p n beta + (p-1)/p n gamma.
// Source: De Sensi et al., "Swing: short-cutting rings for higher bandwidth allreduce", NSDI 2024.
Schedule swing(int rank, int size) {
  return folded(rank, size, power_of_two_within(size), halving_and_doubling<swinging>);
}

// Recursive doubling: pairs at distance 1, 2, 4, ... exchange the whole vector.
// Cost: lg p alpha + n lg p beta + n lg p gamma.
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication", IJHPCA 2005.
Schedule recursive_doubling(int rank, int size) {
  return folded(rank, size, power_of_two_within(size),
                [](int r, int p) { return multiplying(r, p, digits(p, 2)); });
}

// Recursive multiplying: k ranks at a time exchange the whole vector. Mixed radix where p is a
// product of factors up to k, else folded onto the next smaller such size.
// Cost: m alpha + m (k-1) n beta + m (k-1) n gamma for p = k^m.
// Source: Rüfenacht, Bull and Booth, "Generalisation of recursive doubling for allreduce",
// EuroMPI 2016.
Schedule recursive_multiplying(int rank, int size, int k) {
  int mains = size;
  while (mains > 1 && digits(mains, k).empty()) --mains;
  return folded(rank, size, mains, [k](int r, int p) { return multiplying(r, p, digits(p, k)); });
}

}  // namespace gradred
