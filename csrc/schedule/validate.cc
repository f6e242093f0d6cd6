#include "schedule/validate.h"

#include <string>
#include <utility>

#include "schedule/algorithms.h"
#include "schedule/leaf_schedule.h"
#include "schedule/replay.h"

namespace gradred {
namespace {

std::string run(const char* word, std::uint32_t first, std::uint32_t count) {
  const std::string start = std::to_string(first);
  if (count == 1) return std::string(word) + " " + start;
  if (count == 0) return "no " + std::string(word) + " at " + start;
  return std::string(word) + "s " + start + ".." + std::to_string(std::uint64_t{first} + count - 1);
}

bool meet(std::uint64_t a, std::uint64_t a_count, std::uint64_t b, std::uint64_t b_count) {
  return a < b + b_count && b < a + a_count;
}

bool overlap(const Span& a, const Span& b) {
  if (a.buffer != b.buffer) return false;
  if (is_in_slots(a.buffer)) return meet(a.slot, a.chunks, b.slot, b.chunks);
  return meet(a.first, a.chunks, b.first, b.chunks);
}

const Span& message_span(const Step& step) {
  return step.kind == StepKind::kSend ? step.source : step.target;
}

// What is wrong with a span; empty if nothing is.
std::string fault(const Schedule& schedule, const Span& span) {
  if (span.buffer > BufferId::kCoded) return "a span names no buffer";
  if (span.buffer == BufferId::kInput && schedule.in_place) {
    return describe(span) + ": this schedule is in place, its input lies in the work buffer";
  }
  if (span.chunks == 0) return "a span is empty";
  if (std::uint64_t{span.first} + span.chunks > schedule.chunks) {
    return describe(span) + " lies outside the vector of " + std::to_string(schedule.chunks) +
           " chunks";
  }
  if (span.buffer == BufferId::kInput && span.slot >= vectors_of_input(schedule)) {
    return describe(span) + ": it has only " + std::to_string(vectors_of_input(schedule)) +
           " vectors";
  }
  const bool is_coded = span.buffer == BufferId::kCoded;
  const std::uint32_t slots = is_coded ? schedule.coded_slots : schedule.scratch_slots;
  if (is_in_slots(span.buffer) && std::uint64_t{span.slot} + span.chunks > slots) {
    return describe(span) + " lies outside the " + (is_coded ? "coded" : "scratch") +
           " buffer of " + std::to_string(slots) + " slots";
  }
  return {};
}

std::string operand_fault(const Schedule& schedule, const Step& step) {
  if (std::string why = fault(schedule, step.operand); !why.empty()) return why;
  if (step.operand.buffer == BufferId::kCoded) return "the operand is encoded: " + describe(step);
  if (step.operand.first != step.target.first || step.operand.chunks != step.target.chunks) {
    return "operand and target are different chunks: " + describe(step);
  }
  if (step.operand != step.target && overlap(step.operand, step.target)) {
    return "operand and target overlap: " + describe(step);
  }
  return {};
}

std::string fault(const Schedule& schedule, const Step& step) {
  if (step.kind > StepKind::kCopy) return "a step has no kind";
  if (writes_target(step.kind) && step.target.buffer == BufferId::kInput) {
    return "the input is only read: " + describe(step);
  }
  if (schedule.collective == Kind::kBcast && schedule.rank == schedule.root && schedule.in_place &&
      writes_target(step.kind) && step.target.buffer == BufferId::kWork) {
    return "the array of a broadcast's root is only read: " + describe(step);
  }
  if (is_message(step.kind)) {
    if (step.peer < 0 || step.peer >= schedule.size) {
      return "peer " + std::to_string(step.peer) + " is none of the " +
             std::to_string(schedule.size) + " ranks";
    }
    if (step.peer == schedule.rank) return "a rank sends itself no messages: use a copy";
    return fault(schedule, message_span(step));
  }
  if (std::string why = fault(schedule, step.source); !why.empty()) return why;
  if (std::string why = fault(schedule, step.target); !why.empty()) return why;
  if (step.source.first != step.target.first || step.source.chunks != step.target.chunks) {
    return "source and target are different chunks: " + describe(step);
  }
  const bool encodes = step.target.buffer == BufferId::kCoded;
  if (encodes && (step.kind == StepKind::kReduce || step.source.buffer == BufferId::kCoded)) {
    return "only a copy of numbers encodes: " + describe(step);
  }
  if (overlap(step.source, step.target)) return "source and target overlap: " + describe(step);
  return step.kind == StepKind::kReduce ? operand_fault(schedule, step) : std::string();
}

// All messages of a round are in flight together, so no other message may touch what one receives.
void check_flight(const Schedule& schedule, int round, const Round& steps) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != StepKind::kRecv) continue;
    for (std::size_t j = 0; j < steps.size(); ++j) {
      const bool twice = steps[j].kind == StepKind::kRecv && j < i;
      if ((steps[j].kind == StepKind::kSend || twice) &&
          overlap(steps[i].target, message_span(steps[j]))) {
        throw ScheduleError({schedule.rank, round, static_cast<int>(i),
                             "in flight together and overlapping: " + describe(steps[i]) + "; " +
                                 describe(steps[j])});
      }
    }
  }
}

void check_head(const Schedule& schedule) {
  const auto require = [&](bool condition, const std::string& reason) {
    if (!condition) throw ScheduleError({schedule.rank, -1, -1, reason});
  };
  require(schedule.size >= 1, "size " + std::to_string(schedule.size) + ": there is no rank");
  require(schedule.rank >= 0 && schedule.rank < schedule.size,
          "the rank is none of the " + std::to_string(schedule.size) + " ranks");
  require(schedule.root >= 0 && schedule.root < schedule.size,
          "root " + std::to_string(schedule.root) + " is none of the " +
              std::to_string(schedule.size) + " ranks");
  require(schedule.chunks >= 1, "the vector has no chunk");
  require(
      schedule.coded_slots == 0 || (schedule.wire != Wire::kNone && schedule.wire < Wire::kAuto),
      "a coded buffer needs a form");
  require(!has_blocks(schedule.collective) ||
              schedule.chunks % static_cast<std::uint32_t>(schedule.size) == 0,
          std::to_string(schedule.chunks) + " chunks for " + std::to_string(schedule.size) +
              " ranks: " + std::string(schedules_name(schedule.collective)) +
              " needs a multiple, so that each rank owns as many");
}

}  // namespace

std::string describe(const Problem& problem) {
  std::string where;
  const auto add = [&](const char* word, int number) {
    if (number >= 0) where += (where.empty() ? "" : ", ") + (word + std::to_string(number));
  };
  add("rank ", problem.rank);
  add("round ", problem.round);
  add("step ", problem.step);
  return where.empty() ? problem.reason : where + ": " + problem.reason;
}

std::string describe(const Span& span) {
  const std::string chunks = run("chunk", span.first, span.chunks);
  if (span.buffer == BufferId::kWork) return chunks;
  if (span.buffer == BufferId::kInput) {
    return chunks + " of " +
           (span.slot == 0 ? "" : "vector " + std::to_string(span.slot) + " of ") + "the input";
  }
  const char* const word = span.buffer == BufferId::kCoded ? "coded slot" : "slot";
  return chunks + " in " + run(word, span.slot, span.chunks);
}

std::string describe(const Step& step) {
  switch (step.kind) {
    case StepKind::kSend:
      return "send " + describe(step.source) + " to rank " + std::to_string(step.peer);
    case StepKind::kRecv:
      return "recv " + describe(step.target) + " from rank " + std::to_string(step.peer);
    case StepKind::kReduce:
      return "reduce " + describe(step.source) +
             (step.operand == step.target ? "" : " and " + describe(step.operand)) + " into " +
             describe(step.target);
    case StepKind::kCopy:
      return "copy " + describe(step.source) + " to " + describe(step.target);
  }
  return "step of no kind";
}

void validate(const Schedule& schedule) {
  check_head(schedule);
  if (!schedule.leaves.empty() && !fits_leaves(schedule)) {
    throw ScheduleError({schedule.rank, -1, -1, std::string(kLeavesMustBe)});
  }
  Replay({&schedule, 1}).in_step([&](std::size_t, std::size_t number, const Round& steps) {
    const auto round = static_cast<int>(number);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      std::string why = fault(schedule, steps[step]);
      if (!why.empty()) {
        throw ScheduleError({schedule.rank, round, static_cast<int>(step), std::move(why)});
      }
    }
    check_flight(schedule, round, steps);
  });
}

}  // namespace gradred
