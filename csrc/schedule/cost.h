// What a schedule moves, and how long that takes: the one model of costs, from which plans are
// chosen and explained. alpha-beta-gamma with two kinds of links, a time for further messages of a
// round and one for copies.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/schedule.h"
#include "schedule/topology.h"

namespace gradred {

// One kind of link; seconds.
struct Link {
  double alpha = 0;  // per round that uses it
  double beta = 0;   // per byte sent or received, whichever is more
};

// Seconds. Messages of one round share the port of their rank: they set off and arrive one after
// the other. The ranks of a host share its link to the others.
struct CostModel {
  Link inside;         // between ranks of one host
  Link across;         // between hosts
  double gap = 0;      // per further message that a rank sends, or receives, in a round
  double gamma = 0;    // per byte reduced
  double delta = 0;    // per byte copied: read and written
  double on_host = 0;  // per operation that the ranks of a host make in their shared memory
  double far =
      0;  // the share by which a byte to a rank that is no neighbour costs more: routes cross
};

// Of one rank; bytes.
struct Traffic {
  std::size_t messages = 0;  // sent
  std::size_t sent = 0, received = 0, reduced = 0, copied = 0;
};
Traffic traffic(const Schedule& schedule, std::size_t bytes);

// What an operation costs, for every length of the vector: over the rounds, the sum of what the
// busiest rank does of each kind, and between hosts the ranks of the busiest host together. Rounds
// are taken to run in step. All but counts are in vectors, which is exact where the bytes are a
// multiple of the chunks; else no chunk is taken for more than one element longer or shorter than
// it is.
struct Cost {
  struct OnLink {
    double rounds = 0;   // inside: those in which no message leaves its host
    double moved = 0;    // sent or received, whichever is more
    double distant = 0;  // of that, to or from ranks that are no neighbours
  };
  OnLink inside, across;
  double messages = 0;  // further ones: beyond the first of a round
  double sent = 0;      // messages in all
  double reduced = 0;
  double copied = 0;
  double on_host = 0;  // operations in shared memory, beside what they copy and reduce

  // With several slices of the vector in flight: their messages share the port of their rank, and
  // one slice is reduced while another is on the wire.
  double seconds(std::size_t bytes, const CostModel& model, std::size_t slices = 1) const;
  // The number of slices up to `most`, a power of two, that costs least.
  std::size_t best_slices(std::size_t bytes, const CostModel& model, std::size_t most) const;
};

// Of the schedules of all ranks, or of those that may be the busiest.
Cost cost(const std::vector<Schedule>& schedules, const Topology& topology);

// Of a built-in algorithm, as of all its ranks: on one host found from two of them (a test compares
// with all, for every algorithm); on several, of more than 64 ranks, from these and those of the
// fullest host, which stands for all.
Cost cost(Collective collective, std::string_view name, const Parameters& parameters,
          const Topology& topology);
// Likewise of what crosses between the groups of a hierarchical one.
Cost cost_across_groups(Collective collective, const Parameters& parameters,
                        const Topology& topology);

}  // namespace gradred
