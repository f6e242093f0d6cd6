// An algorithm as data: what one rank sends, receives, reduces and copies, round by round.
//
// The vector is cut into `chunks` chunks (partition.h is the only code that divides). A span is a
// run of chunks [first, first + chunks) of that vector. In the work buffer and in the input buffer
// a span lies at its own position; in the scratch buffer it lies in a slot. Every scratch slot is
// as large as the largest chunk. A span of k chunks takes k consecutive slots and lies dense from
// the start of the first one. So a span always identifies its part of the vector, and never holds
// an address.
//
// The result ends in the work buffer. The input lies there, too (in place: what generators make),
// or in the input buffer, which is only read (what from_input in combinators.h makes of them).
//
// Within a round all sends and receives are in flight together. When all have completed, the local
// steps (reduce, copy) run in their order. Messages between two ranks match in order. Both ends of
// a message must have the same spans, and hence the same sizes.
#pragma once

#include <cstdint>
#include <string>

#include "schedule/rounds.h"

namespace gradred {

enum class Collective : std::uint8_t { kAllreduce, kReduceScatter, kAllgather, kBcast };

// What the input (in the work buffer, or in the input buffer) and the result are. c(r) stands for
// the chunks that rank r owns: r * chunks / size ... (r + 1) * chunks / size.
//   kAllreduce       every rank its input        -> every rank the reduction of all
//   kReduceScatter   every rank its input        -> rank r the reduction in c(r), else undefined
//   kAllgather       rank r its input in c(r)    -> every rank all inputs
//   kBcast           the root its input          -> every rank the root's input
// For reduce-scatter and allgather, chunks is a multiple of size.
struct Schedule {
  std::string name;
  Collective collective = Collective::kAllreduce;
  int rank = 0;
  int size = 1;
  int root = 0;  // kBcast only
  std::uint32_t chunks = 1;
  std::uint32_t scratch_slots = 0;
  bool in_place = true;  // the input lies in the work buffer
  Rounds rounds;

  bool operator==(const Schedule&) const = default;
};

}  // namespace gradred
