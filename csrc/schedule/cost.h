// What a schedule moves, and how long that takes: the alpha-beta-gamma model, with a time for
// further messages of a round and one for copies.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/schedule.h"

namespace gradred {

// Seconds. Messages of one round share the port of their rank: they set off and arrive one after
// the other.
struct CostModel {
  double alpha = 0;  // per round that has messages
  double gap = 0;    // per further message that a rank sends, or receives, in a round
  double beta = 0;   // per byte sent or received, whichever is more
  double gamma = 0;  // per byte reduced
  double delta = 0;  // per byte copied: read and written
};

// Of one rank; bytes.
struct Traffic {
  std::size_t messages = 0;  // sent
  std::size_t sent = 0, received = 0, reduced = 0, copied = 0;
};
Traffic traffic(const Schedule& schedule, std::size_t bytes);

// What an operation costs, for every length of the vector: over the rounds, the sum of what the
// busiest rank does of each kind. Rounds are taken to run in step. The last three count vectors,
// which is exact where the bytes are a multiple of the chunks; else no chunk is taken for more than
// one element longer or shorter than it is.
struct Cost {
  double rounds = 0;    // that have messages
  double messages = 0;  // further ones: beyond the first of a round
  double moved = 0;     // sent or received, whichever is more
  double reduced = 0;
  double copied = 0;

  double seconds(std::size_t bytes, const CostModel& model) const {
    return rounds * model.alpha + messages * model.gap +
           static_cast<double>(bytes) *
               (moved * model.beta + reduced * model.gamma + copied * model.delta);
  }
};

// Of the schedules of all ranks, or of those that may be the busiest.
Cost cost(const std::vector<Schedule>& schedules);

// Of a built-in algorithm, as of all its ranks: found from two of them (a test compares with all,
// for every algorithm), once in a process. May be called by any thread.
Cost cost(Collective collective, std::string_view name, int size,
          const Parameters& parameters = {});

}  // namespace gradred
