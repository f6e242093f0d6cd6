// Functions that make schedules from schedules. All are pure: they take a schedule and return a new
// one.
#pragma once

#include <functional>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/topology.h"

namespace gradred {

using Generator = std::function<Schedule(int rank, int size)>;

// A schedule without rounds, for a generator to fill.
Schedule blank(Kind collective, int rank, int size, int chunks, int scratch_slots = 0);

// Runs `first`, then `second`; both have the same rank, size and chunks. The result's collective is
// set to `collective`.
Schedule then(Schedule first, Schedule second, Kind collective);

// Lets a subset of `size` ranks run a schedule made for ranks 0, 1, ...: rank i of it is
// `members[i]`.
Schedule embed(Schedule schedule, const std::vector<int>& members, int size);

// Refines the cut of the vector, or restricts the schedule to a part of it: chunk i becomes the run
// [starts[i], starts[i + 1]) of a vector of `chunks` chunks.
Schedule widen(Schedule schedule, const std::vector<int>& starts, int chunks);

// Returns the count + 1 numbers first, first + stride, ...: evenly spaced members or starts.
std::vector<int> evenly(int first, int stride, int count);

// Extends a generator that serves only `mains` ranks to any size. The ranks form `mains` blocks of
// neighbours. The first rank of each block reduces the others' inputs into its own, runs the
// generator's schedule, and sends the results back. Adds two rounds of up to n bytes per extra rank
// of a block. Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004,
// for blocks of two.
Schedule folded(int rank, int size, int mains, const Generator& generator);

// Ranks in groups of any sizes, and lanes. A lane is a run of chunks that one rank of every group
// carries across the groups. There are as many lanes as the largest group has ranks: each of its
// ranks carries one lane, and a rank of a smaller group may carry several. With leaders there is
// one lane, which the first rank of each group carries.
struct Lanes {
  std::vector<std::vector<int>> groups;  // the ranks of each group
  int count = 1;
  // A rank's group, its place in the group, and the number of ranks of the group.
  struct Spot {
    std::size_t group = 0;
    int place = 0, ranks = 0;
  };
  std::vector<Spot> spots{};  // by rank

  static Lanes of(const Topology& topology, bool leaders);
  int size() const { return static_cast<int>(spots.size()); }  // ranks of all groups
  const Spot& spot_of(int rank) const { return spots.at(static_cast<std::size_t>(rank)); }
  // Rank `place` of a group of `ranks` carries the lanes from first(place, ranks) to first(place +
  // 1, ranks), which may be none.
  int first(int place, int ranks) const { return (place * count + ranks - 1) / ranks; }
  int carrier(int lane, std::size_t group) const {
    const auto ranks = static_cast<int>(groups[group].size());
    return groups[group][static_cast<std::size_t>(lane * ranks / count)];
  }
};

// The part of a hierarchical collective that crosses between the groups: runs `across` on all lanes
// at once. For an allreduce, each rank holds its group's sums in its lanes before, and the sums of
// all ranks after.
Schedule across_groups(int rank, const Lanes& lanes, const Generator& across);

// Allreduce on groups of ranks: a reduce-scatter inside each group, an allreduce of each lane
// across the groups, and an allgather inside. With leaders: a reduction to the leader and a
// broadcast from it instead. No more data cross between groups than if each group were one rank.
// Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning", MLSys 2019.
struct Levels {
  Generator reduce_scatter, across, allgather;
};
Schedule hierarchical(int rank, const Lanes& lanes, const Levels& levels);

// Changes an in-place schedule into one whose input is in a separate buffer that stays as it is.
// This saves the pass over memory that copies the input first. What the work buffer does not hold
// yet is read from the input, so a reduction has three addresses. A chunk is copied to the work
// buffer only if a span needs it beside chunks that are there already, or if the result is the
// input. Messages and sums do not change.
Schedule from_input(Schedule schedule);

}  // namespace gradred
