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
#include <vector>

namespace gradred {

enum class StepKind : std::uint8_t { kSend, kRecv, kReduce, kCopy };
enum class BufferId : std::uint8_t { kWork, kScratch, kInput };
enum class Collective : std::uint8_t { kAllreduce, kReduceScatter, kAllgather, kBcast };

struct Span {
  BufferId buffer = BufferId::kWork;
  std::uint32_t first = 0;   // chunk of the vector
  std::uint32_t chunks = 0;  // length of the run; never wraps around the end of the vector
  std::uint32_t slot = 0;    // scratch only: where the run is stored

  bool operator==(const Span&) const = default;
};

// kSend: source -> peer.  kRecv: peer -> target.  kCopy: target = source.
// kReduce: target = operand op source (all three the same chunks of the vector). The operand may be
// the target itself.
struct Step {
  StepKind kind = StepKind::kCopy;
  int peer = -1;  // kSend and kRecv only
  Span source{};
  Span target{};
  Span operand{};  // kReduce only

  bool operator==(const Step&) const = default;
};

// What of a step counts: messages have a peer; an end that a kind lacks is ignored.
constexpr bool is_message(StepKind kind) {
  return kind == StepKind::kSend || kind == StepKind::kRecv;
}
constexpr bool reads_source(StepKind kind) { return kind != StepKind::kRecv; }
constexpr bool reads_operand(StepKind kind) { return kind == StepKind::kReduce; }
constexpr bool writes_target(StepKind kind) { return kind != StepKind::kSend; }

using Round = std::vector<Step>;

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
  std::vector<Round> rounds;

  bool operator==(const Schedule&) const = default;
};

// Step constructors, so that a generator reads like its paper.
inline Span work(std::uint32_t first, std::uint32_t chunks = 1) {
  return {BufferId::kWork, first, chunks, 0};
}
inline Span scratch(std::uint32_t slot, std::uint32_t first, std::uint32_t chunks = 1) {
  return {BufferId::kScratch, first, chunks, slot};
}
inline Span input(std::uint32_t first, std::uint32_t chunks = 1) {
  return {BufferId::kInput, first, chunks, 0};
}
inline Step send(int peer, Span source) { return {StepKind::kSend, peer, source, {}, {}}; }
inline Step recv(int peer, Span target) { return {StepKind::kRecv, peer, {}, target, {}}; }
inline Step reduce(Span source, Span operand, Span target) {
  return {StepKind::kReduce, -1, source, target, operand};
}
inline Step reduce(Span source, Span target) { return reduce(source, target, target); }
inline Step copy(Span source, Span target) { return {StepKind::kCopy, -1, source, target, {}}; }

}  // namespace gradred
