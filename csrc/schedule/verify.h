// Proves that schedules do what their collective promises: runs all ranks together on symbolic
// values, without MPI and without memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/validate.h"

namespace gradred {

struct Report {
  bool ok = false;
  Problem problem;  // the first problem found, if not ok
  // A digest of the final state that the collective demands: equal trees give equal digests.
  std::uint64_t digest = 0;
  std::size_t rounds = 0;  // of the rank that has most
  std::size_t messages = 0;
  std::size_t sums = 0;  // different sums that were formed
};

// Verifies schedules, one per rank in order of rank. If the report is ok, these are proved:
//   every message meets its counterpart, in order per pair of ranks, with the same chunks;
//   there is no deadlock, even if a send completes only once its receive is posted;
//   nothing in flight overlaps, and nothing is read that has not been written;
//   a run in the scratch buffer is read only from where it was written (chunks differ in length, so
//   where a chunk lies depends on where its run begins);
//   the final state is what schedule.h demands: every rank is counted exactly once and, for a given
//   chunk, all ranks have the same tree of sums (up to a+b = b+a); of leaves it is their tree.
Report verify(const std::vector<Schedule>& schedules);

}  // namespace gradred
