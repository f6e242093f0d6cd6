// The proof that schedules do what their collective promises: all ranks are run together on
// symbolic values, without MPI and without memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/validate.h"

namespace gradred {

struct Report {
  bool ok = false;
  Problem problem;  // where not ok: the first one found
  std::uint64_t digest =
      0;  // of the final state that the collective demands: equal trees, equal digests
  std::size_t rounds = 0;  // of the longest rank
  std::size_t messages = 0;
  std::size_t sums = 0;  // different ones that were formed
};

// One schedule per rank, in order of rank. Proved when ok:
//   every message meets its counterpart, in order per pair of ranks, with the same chunks;
//   no deadlock, even when a send completes only once its receive is posted;
//   nothing in flight overlaps, nothing is read that has not been written;
//   a run in the scratch buffer is read only from where it was written (chunks differ in length, so
//   where a chunk lies depends on where its run begins);
//   the final state is what schedule.h demands, with every rank counted exactly once and, for a
//   given chunk, the same tree of sums (up to a+b = b+a) on every rank.
Report verify(const std::vector<Schedule>& schedules);

}  // namespace gradred
