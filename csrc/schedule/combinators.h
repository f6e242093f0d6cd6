// Schedules made from schedules. All are pure: they take a schedule and give a new one.
#pragma once

#include <functional>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/topology.h"

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

// Ranks in groups of any sizes, and the lanes on which a vector crosses between the groups: runs of
// chunks, of which each is carried by one rank of every group. There are as many lanes as the
// largest group has ranks, so that each of its ranks carries one, and a rank of a smaller group
// several; or one, which the groups' first ranks carry, their leaders.
struct Lanes {
  std::vector<std::vector<int>> groups;  // their ranks
  int count = 1;
  // Where a rank stands: its group, its place there, and how many ranks that has.
  struct Spot {
    std::size_t group = 0;
    int place = 0, ranks = 0;
  };
  std::vector<Spot> spots{};  // by rank

  static Lanes of(const Topology& topology, bool leaders);
  int size() const { return static_cast<int>(spots.size()); }  // ranks of all groups
  const Spot& spot_of(int rank) const { return spots.at(static_cast<std::size_t>(rank)); }
  // Rank `place` of a group of `ranks` carries the lanes from first(place, ranks) to that of the
  // next one, which may be none.
  int first(int place, int ranks) const { return (place * count + ranks - 1) / ranks; }
  int carrier(int lane, std::size_t group) const {
    const auto ranks = static_cast<int>(groups[group].size());
    return groups[group][static_cast<std::size_t>(lane * ranks / count)];
  }
};

// What of a hierarchical collective crosses between the groups: what `across` does, on each lane,
// all lanes at once. Of an allreduce: before it each rank holds the sums of its group in its lanes,
// and after it those of all.
Schedule across_groups(int rank, const Lanes& lanes, const Generator& across);

// Allreduce on groups of ranks: reduce-scatter inside each group; allreduce of each lane across the
// groups; allgather inside. With leaders, reduction to the leader, then back from it. Between
// groups no more crosses than if each were one rank.
// Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning", MLSys 2019.
struct Levels {
  Generator reduce_scatter, across, allgather;
};
Schedule hierarchical(int rank, const Lanes& lanes, const Levels& levels);

// The same schedule for an input that is not in the work buffer and stays as it is: no pass over
// memory is spent on copying the input first. What work does not hold yet is read from the input,
// so that a reduction into it has three addresses; a chunk is copied to work only where one span
// needs it beside chunks that work holds already, or where the result is the input. Messages and
// sums are those of the schedule that is given, which is in place.
Schedule from_input(Schedule schedule);

}  // namespace gradred
