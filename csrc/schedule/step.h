// What a rank does in a round of a schedule; schedule.h defines the terms.
#pragma once

#include <cstdint>
#include <vector>

namespace gradred {

enum class StepKind : std::uint8_t { kSend, kRecv, kReduce, kCopy };
// kCoded: scratch slots in the form of Schedule::wire. A copy into them encodes, a copy out of them
// decodes, a reduction from them decodes and adds.
enum class BufferId : std::uint8_t { kWork, kScratch, kInput, kCoded };

struct Span {
  BufferId buffer = BufferId::kWork;
  std::uint32_t first = 0;   // chunk of the vector
  std::uint32_t chunks = 0;  // length of the run; never wraps around the end of the vector
  std::uint32_t slot =
      0;  // scratch and coded: where the run is stored; input: which of its vectors

  bool operator==(const Span&) const = default;
};

// kSend: source -> peer.  kRecv: peer -> target.  kCopy: target = source. kReduce: target = operand
// op source (all three are the same chunks of the vector). The operand may be the target itself.
struct Step {
  StepKind kind = StepKind::kCopy;
  int peer = -1;  // kSend and kRecv only
  Span source{};
  Span target{};
  Span operand{};  // kReduce only

  bool operator==(const Step&) const = default;
};

// Which fields of a step are used: only messages have a peer, and unused spans are ignored.
constexpr bool is_message(StepKind kind) {
  return kind == StepKind::kSend || kind == StepKind::kRecv;
}
constexpr bool reads_source(StepKind kind) { return kind != StepKind::kRecv; }
constexpr bool reads_operand(StepKind kind) { return kind == StepKind::kReduce; }
constexpr bool writes_target(StepKind kind) { return kind != StepKind::kSend; }

constexpr bool uses_codec(const Step& step) {
  return !is_message(step.kind) &&
         (step.source.buffer == BufferId::kCoded || step.target.buffer == BufferId::kCoded);
}
constexpr bool is_in_slots(BufferId buffer) {
  return buffer == BufferId::kScratch || buffer == BufferId::kCoded;
}

using Round = std::vector<Step>;

// Constructors of steps, so that a generator reads like the paper that it implements.
inline Span work(std::uint32_t first, std::uint32_t chunks = 1) {
  return {BufferId::kWork, first, chunks, 0};
}
inline Span scratch(std::uint32_t slot, std::uint32_t first, std::uint32_t chunks = 1) {
  return {BufferId::kScratch, first, chunks, slot};
}
inline Span input(std::uint32_t first, std::uint32_t chunks = 1, std::uint32_t vector = 0) {
  return {BufferId::kInput, first, chunks, vector};
}
inline Span coded(std::uint32_t slot, std::uint32_t first, std::uint32_t chunks = 1) {
  return {BufferId::kCoded, first, chunks, slot};
}
inline Step send(int peer, Span source) { return {StepKind::kSend, peer, source, {}, {}}; }
inline Step recv(int peer, Span target) { return {StepKind::kRecv, peer, {}, target, {}}; }
inline Step reduce(Span source, Span operand, Span target) {
  return {StepKind::kReduce, -1, source, target, operand};
}
inline Step reduce(Span source, Span target) { return reduce(source, target, target); }
inline Step copy(Span source, Span target) { return {StepKind::kCopy, -1, source, target, {}}; }

}  // namespace gradred
