// Scans: rank r gets the reduction of the inputs of the ranks up to itself, or before itself in an
// exclusive scan. The ranks' order is kept: each sum is of neighbouring ranks.
#include <algorithm>
#include <bit>

#include "schedule/combinators.h"
#include "schedule/generators.h"

namespace gradred {
namespace {

constexpr std::uint32_t kInbox = 0, kMine = 1;  // slots of the scratch buffer

bool is_exclusive(Kind collective) { return collective == Kind::kExscan; }

// The ranks form a chain. In round s, rank r sends chunk s - r of what it has summed to the next
// rank. It receives the chunk after that, in which all ranks before it are summed.
Schedule chain(Kind collective, int rank, int size, int chunks) {
  const bool exclusive = is_exclusive(collective), last = rank == size - 1;
  Schedule schedule = blank(collective, rank, size, chunks, size > 1 ? 2 : 0);
  if (size == 1) return schedule;
  schedule.rounds = Rounds(size - 2 + chunks, [=](int s) {
    const int given = s - rank, taken = given + 1;
    Round round;
    if (!last && given >= 0 && given < chunks) {
      const auto chunk = static_cast<std::uint32_t>(given);
      const bool in_scratch = exclusive && rank > 0;
      round.push_back(send(rank + 1, in_scratch ? scratch(kMine, chunk) : work(chunk)));
    }
    if (rank == 0 || taken < 0 || taken >= chunks) return round;
    const auto chunk = static_cast<std::uint32_t>(taken);
    const Span inbox = scratch(kInbox, chunk);
    if (exclusive && last) {
      round.push_back(recv(rank - 1, work(chunk)));
    } else if (exclusive) {
      round.push_back(recv(rank - 1, inbox));
      round.push_back(reduce(work(chunk), inbox, scratch(kMine, chunk)));
      round.push_back(copy(inbox, work(chunk)));
    } else {
      round.push_back(recv(rank - 1, inbox));
      round.push_back(reduce(inbox, work(chunk)));
    }
    return round;
  });
  return schedule;
}

}  // namespace

// Linear scan: the whole vector travels up the ranks, and each rank adds its input.
// Cost: (p-1) alpha + (p-1) n beta + (p-1) n gamma.
// Source: Sanders and Träff, "Parallel prefix (scan) algorithms for MPI", EuroPVM/MPI 2006.
Schedule linear_scan(Kind collective, int rank, int size) {
  return chain(collective, rank, size, 1);
}

// Pipelined scan: the same in m chunks, several of which are under way.
// Cost: (p-2+m) (alpha + n/m beta + n/m gamma).
// Source: as above.
Schedule pipelined_scan(Kind collective, int rank, int size) {
  constexpr int kMostChunks = 64;
  return chain(collective, rank, size, std::clamp(2 * (size - 1), 1, kMostChunks));
}

// Recursive doubling: a rank has the sum of itself and the d - 1 ranks before it. It sends this sum
// to the rank d further on and adds the sum that it receives; then d doubles. In an exclusive scan
// it keeps beside that sum the one without its own input.
// Cost: ceil(lg p) alpha + n ceil(lg p) beta + n ceil(lg p) gamma; exclusive: twice the gamma.
// Source: Hillis and Steele, "Data parallel algorithms", Communications of the ACM 29, 1986.
Schedule recursive_doubling_scan(Kind collective, int rank, int size) {
  const bool exclusive = is_exclusive(collective);
  Schedule schedule = blank(collective, rank, size, 1, size > 1 ? 2 : 0);
  schedule.rounds = Rounds(std::bit_width(static_cast<unsigned>(size - 1)), [=](int step) {
    const int d = 1 << step, to = rank + d, from = rank - d;
    const Span inbox = scratch(kInbox, 0), result = work(0);
    // The sum of the d ranks up to this one. At first it is the input.
    const Span own = exclusive && rank > 0 && step > 0 ? scratch(kMine, 0) : result;
    const bool sends_again = rank + 2 * d < size;
    Round round;
    if (to < size) round.push_back(send(to, own));
    if (from < 0) return round;
    round.push_back(recv(from, inbox));
    if (!exclusive) {
      round.push_back(reduce(inbox, result));
    } else if (step == 0) {
      if (sends_again) round.push_back(reduce(own, inbox, scratch(kMine, 0)));
      round.push_back(copy(inbox, result));
    } else {
      round.push_back(reduce(inbox, result));
      if (sends_again) round.push_back(reduce(inbox, own));
    }
    return round;
  });
  return schedule;
}

}  // namespace gradred
