// Mutation test of the verifier. It changes one step of the schedules at a time. The verifier must
// reject each mutant or prove that it ends in the same state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace gradred {

struct MutationResult {
  std::size_t mutants = 0;
  std::size_t rejected = 0;
  std::vector<std::string> equivalent;  // accepted, with the original's final state
  std::vector<std::string> different;   // accepted, with another correct tree of sums
};

// Verifies mutants of the schedules, each with one change in one step. The change is one of these:
// - The step is dropped or duplicated.
// - It has another peer or kind.
// - One of its spans, or all of them, has another buffer, slot or chunks.
// - Its target is exchanged with a span that it reads.
// sample = 0 tests all mutants, otherwise that many drawn with `seed`. The schedules, one per rank,
// must be correct.
MutationResult mutation_test(std::vector<Schedule> schedules, std::size_t sample = 0,
                             std::uint64_t seed = 1);

}  // namespace gradred
