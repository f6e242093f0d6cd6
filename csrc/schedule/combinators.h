// Schedules made from schedules. All are pure: they take a schedule and give a new one.
#pragma once

#include <functional>
#include <vector>

#include "schedule/schedule.h"

namespace gradred {

using Generator = std::function<Schedule(int rank, int size)>;

// A schedule without rounds, for a generator to fill.
Schedule blank(Collective collective, int rank, int size, int chunks, int scratch_slots = 0);

// `first`, then `second`: same rank, size and chunks. The result claims to be `collective`.
Schedule then(Schedule first, Schedule second, Collective collective);

// A schedule made for ranks 0, 1, ... run by a subset of `size` ranks: its rank i is `members[i]`.
Schedule embed(Schedule schedule, const std::vector<int>& members, int size);

// A schedule on a finer cut, or on a part of the vector: its chunk i becomes the run
// [starts[i], starts[i + 1]) of a vector of `chunks` chunks.
Schedule widen(Schedule schedule, const std::vector<int>& starts, int chunks);

// count + 1 numbers first, first + stride, ...: members and starts that are evenly spaced.
std::vector<int> evenly(int first, int stride, int count);

// Any size from a generator that serves only `mains` ranks. The ranks form `mains` blocks of
// neighbours; the first of each block takes in the others' inputs, runs the generator's schedule
// for them, and hands out results. Adds two rounds of up to n bytes per extra rank of a block.
// Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004, for blocks
// of two.
Schedule folded(int rank, int size, int mains, const Generator& generator);

// Allreduce on `size` ranks in groups of `local` neighbours, of which `size` must be a multiple:
// reduce-scatter inside each group; allreduce of each slice across the groups, by all ranks of a
// group at once; allgather inside. Only n / local bytes per rank cross between groups at a time.
// Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning", MLSys 2019.
struct Levels {
  Generator reduce_scatter, across, allgather;
};
Schedule hierarchical(int rank, int size, int local, const Levels& levels);

// The same schedule for an input that is not in the work buffer and stays as it is: no pass over
// memory is spent on copying the input first. What work does not hold yet is read from the input,
// so that a reduction into it has three addresses; a chunk is copied to work only where one span
// needs it beside chunks that work holds already, or where the result is the input. Messages and
// sums are those of the schedule that is given, which is in place.
Schedule from_input(Schedule schedule);

}  // namespace gradred
