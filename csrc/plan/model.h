// What a schedule costs on a topology: the model of schedule/cost.h with two kinds of links, inside
// hosts and between them. The one by which plans are chosen.
//
// Seconds for n bytes:  T = A + G + W n + L n. With K slices of the vector in flight, whose
// messages share the port of their rank, and of which one is reduced while another is on the wire:
// T(K) = A + G + (K - 1) M gap + max(W, L) n + min(W, L) n / K.
//   A   the sum over the rounds of alpha, of the slower of the links that the round uses
//   G   gap for each further message of a rank in a round
//   M   messages that one rank sends
//   W   seconds per byte on links: the rank with most to move, and between hosts the sum over the
//       ranks of a host, which share its link
//   L   seconds per byte that is reduced or copied
// Hosts are taken to be alike: the ranks of the fullest host stand for all.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/topology.h"
#include "schedule/schedule.h"

namespace gradred {

// Of one kind of link.
struct Link {
  double alpha = 0;  // seconds per round that uses it
  double beta = 0;   // seconds per byte
};

struct Model {
  Link inside;       // between ranks of one host
  Link across;       // between hosts
  double gap = 0;    // seconds per further message that a rank sends, or receives, in a round
  double gamma = 0;  // seconds per byte reduced
  double delta = 0;  // seconds per byte copied
  double far = 0;    // by this share a byte costs more to a rank that is no neighbour: routes cross
};

// Round figures of today's machines, where nothing has been measured, for messages by the MPI.
Model assumed_messages();

// Of one schedule on one topology; independent of the length of the vector.
struct Shape {
  double latency = 0;   // A + G
  double messages = 0;  // M
  double wire = 0;      // W
  double local = 0;     // L

  double seconds(std::size_t bytes, std::size_t slices, const Model& model) const;
  // The number of slices up to `most` that costs least.
  std::size_t best_slices(std::size_t bytes, std::size_t most, const Model& model) const;
};

// `schedules`: those of the ranks of one host.
Shape shape_of(const std::vector<Schedule>& schedules, const Topology& topology,
               const Model& model);

// The ranks of the host that has most of them, at most as many as it takes to know the cost.
std::vector<int> ranks_that_stand_for_all(const Topology& topology);

}  // namespace gradred
