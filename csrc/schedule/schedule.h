// An algorithm as data: what one rank sends, receives, reduces and copies, round by round.
//
// The vector is cut into `chunks` chunks (partition.h is the only code that divides). A span is a
// run of chunks [first, first + chunks) of that vector. In the work buffer and in the input buffer
// a span lies at its own position; in the scratch buffer it lies in a slot. Every scratch slot is
// as large as the largest chunk. A span of k chunks takes k consecutive slots and lies dense from
// the start of the first one. The coded buffer has slots likewise, of encoded numbers. So a span
// always identifies its part of the vector, and never holds an address.
//
// The result ends in the work buffer. The input lies there, too (in place: what generators make),
// or in the input buffer, which is only read (what from_input in combinators.h makes of them). A
// schedule for leaves (leaf_schedule.h) has several vectors in the input buffer, one after the
// other.
//
// Within a round all sends and receives are in flight together. When all have completed, the local
// steps (reduce, copy) run in their order. Messages between two ranks match in order. Both ends of
// a message must have the same spans, and hence the same sizes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/kinds.h"
#include "base/wires.h"
#include "schedule/rounds.h"

namespace gradred {

// base/kinds.h says what the input (in the work buffer, or in the input buffer) and the result of a
// rank are. Block r of a vector consists of the chunks that rank r owns: r * chunks / size ...
// (r + 1) * chunks / size. If the kind has blocks, chunks is a multiple of size. Chunks of the work
// buffer that are no part of a rank's result are undefined.
struct Schedule {
  std::string name;
  Kind collective = Kind::kAllreduce;
  int rank = 0;
  int size = 1;
  int root = 0;  // if the kind has one
  std::uint32_t chunks = 1;
  std::uint32_t scratch_slots = 0;
  Wire wire = Wire::kNone;  // the form of the numbers in the coded buffer, if it has slots
  std::uint32_t coded_slots = 0;
  bool in_place = true;  // the input lies in the work buffer
  // How many leaves each rank gives, if they are added up by the tree of base/leaf_tree.h. Each
  // rank's input buffer then has the vectors of its parts. Empty: each rank gives one vector, and
  // they are added up in any order.
  std::vector<int> leaves{};
  Rounds rounds;

  bool operator==(const Schedule&) const = default;
};

// The chunks of its vector that a rank gives or gets; an empty span: none.
inline Span part_of(const Schedule& schedule, Part part) {
  const PlaceInCall at{schedule.rank, schedule.size, schedule.root};
  const auto counts = static_cast<std::uint32_t>(counts_of(part, schedule.collective, at));
  const auto all = static_cast<std::uint32_t>(vector_counts(schedule.collective, schedule.size));
  const std::uint32_t chunks = schedule.chunks / all;
  const auto place = static_cast<std::uint32_t>(part == Part::kOwnBlock ? schedule.rank : 0);
  return work(place * chunks, counts * chunks);
}
inline Span input_of(const Schedule& schedule) {
  return part_of(schedule, info_of(schedule.collective).input);
}
inline Span result_of(const Schedule& schedule) {
  return part_of(schedule, info_of(schedule.collective).result);
}

}  // namespace gradred
