// An algorithm as data: what one rank sends, receives, reduces and copies, round by round.
//
// The vector is cut into `chunks` chunks (partition.h is the only place that divides). A span is a
// run of chunks [first, first + chunks) of that vector, held at its own place in the work buffer or
// in the input buffer, or in a slot of the scratch buffer; every scratch slot is as large as the
// largest chunk, and a span of k chunks takes k consecutive slots and lies dense from the start of
// the first one. So a span always knows which part of the vector it is, and never holds an address.
//
// The result ends in the work buffer. The input lies there, too (in place: what generators make),
// or in the input buffer, which is only read (what from_input in combinators.h makes of them).
//
// Within a round all sends and receives are in flight together; when all have completed, the local
// steps (reduce, copy) run in the order in which they stand. Messages between two ranks match in
// order. The same spans, hence the same sizes, must stand on both ends of a message.
#pragma once

#include <cstdint>
#include <string>

#include "schedule/rounds.h"

namespace gradred {

enum class Collective : std::uint8_t { kAllreduce, kReduceScatter, kAllgather, kBcast };

// What the input (in the work buffer, or in the input buffer) and the result are, with c(r) the
// chunks that rank r owns (r * chunks / size ... (r + 1) * chunks / size):
//   kAllreduce       every rank its input        -> every rank the reduction of all
//   kReduceScatter   every rank its input        -> rank r the reduction in c(r), else anything
//   kAllgather       rank r its input in c(r)    -> every rank all inputs
//   kBcast           the root its input          -> every rank the root's input
// With reduce-scatter and allgather, chunks is a multiple of size.
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
