// A test of the verifier: schedules with one step changed must be rejected, or be proved to end in
// the same state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace gradred {

struct MutationResult {
  std::size_t mutants = 0;
  std::size_t rejected = 0;
  std::vector<std::string> equivalent;  // accepted, and the final state is the original's
  std::vector<std::string> different;   // accepted with another, also correct, tree of sums
};

// Drops or duplicates each step, changes its peer or kind, the buffer, slot or chunks of each of
// its ends or of all of them, or exchanges its target with what it reads, one change at a time, and
// verifies the result. With sample = 0 all mutants, else that many drawn with `seed`. The
// schedules, one per rank, must verify.
MutationResult mutation_test(std::vector<Schedule> schedules, std::size_t sample = 0,
                             std::uint64_t seed = 1);

}  // namespace gradred
