// What a schedule moves and how long that takes: the cost model by which plans are chosen and
// explained. It is the alpha-beta-gamma model with two kinds of links, a time for each further
// message of a round, and a time for copies.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/schedule.h"
#include "schedule/topology.h"

namespace gradred {

// One kind of link; times in seconds.
struct Link {
  double alpha = 0;  // per round that uses the link
  double beta = 0;   // per byte sent or received, the larger of the two
};

// Times in seconds. The messages of one round share their rank's port, so they are sent and arrive
// one after the other. The ranks of a host share its link to other hosts.
struct CostModel {
  Link inside;         // between ranks of one host
  Link across;         // between hosts
  double gap = 0;      // per further message that a rank sends, or receives, in a round
  double gamma = 0;    // per reduced byte; a codec takes kCodec times as long
  double delta = 0;    // per copied byte, which is read and written
  double on_host = 0;  // per operation of a host's ranks in their shared memory
  // The share by which a byte costs more between ranks that are not neighbours, because routes
  // cross.
  double far = 0;
};

// A round figure of what was seen (docs/wire.md).
inline constexpr double kCodec = 3;

// The traffic of one rank, in bytes.
struct Traffic {
  std::size_t messages = 0;  // messages sent
  std::size_t sent = 0, received = 0, reduced = 0, copied = 0;
  std::size_t coded = 0;  // encoded or decoded, counted as float32
};
Traffic traffic(const Schedule& schedule, std::size_t bytes);

// The cost of an operation for every length of the vector. For each kind of work it is the sum,
// over the rounds, of what the busiest rank does; between hosts, of what the ranks of the busiest
// host do together. Rounds are assumed to run in step. All fields but counts are in units of the
// vector. This is exact if the length is a multiple of the chunks; else no chunk is taken for more
// than one element longer or shorter than it is.
struct Cost {
  struct OnLink {
    double rounds = 0;   // for `inside`: rounds in which no message leaves its host
    double moved = 0;    // sent or received, the larger of the two
    double distant = 0;  // the part of that to or from ranks that are not neighbours
  };
  OnLink inside, across;
  double messages = 0;  // beyond the first of each round
  double sent = 0;      // all messages
  double reduced = 0;
  double copied = 0;
  double coded = 0;    // encoded or decoded, counted as float32
  double on_host = 0;  // operations in shared memory, without what they copy and reduce

  // Seconds with `slices` slices of the vector in flight. The slices share the port of their rank,
  // and one slice is reduced while another is on the wire.
  double seconds(std::size_t bytes, const CostModel& model, std::size_t slices = 1) const;
  // The number of slices that costs least: a power of two, at most `most`.
  std::size_t best_slices(std::size_t bytes, const CostModel& model, std::size_t most) const;
};

// The cost of the given schedules: those of all ranks, or of the ranks that may be the busiest.
Cost cost(const std::vector<Schedule>& schedules, const Topology& topology);

// The cost of a built-in algorithm on all ranks. On one host it is computed from three of the
// ranks; a test compares it with that of all ranks for every algorithm. On several hosts all ranks
// are used if they are at most 64; else these three and those of the fullest host, which stand for
// all.
Cost cost(Kind collective, std::string_view name, const Parameters& parameters,
          const Topology& topology);
// The same for the part of a hierarchical algorithm that crosses between the groups.
Cost cost_across_groups(Kind collective, const Parameters& parameters, const Topology& topology);

}  // namespace gradred
