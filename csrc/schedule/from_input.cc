// Changes schedules so that they read their input from a separate buffer.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "schedule/combinators.h"
#include "schedule/replay.h"

namespace gradred {
namespace {

// A round, and within it 0 for its messages and then 1, 2, ... for its local steps.
using Moment = std::pair<std::uint32_t, std::uint32_t>;
constexpr std::uint32_t kEnd = UINT32_MAX;  // of a round
constexpr Moment kNever = {kEnd, kEnd};

// Records since when the work buffer holds each chunk of a schedule whose input lies elsewhere.
class OutOfPlace {
 public:
  explicit OutOfPlace(Schedule in_place);
  Round round(std::uint32_t number) const;

 private:
  void follow_messages(std::uint32_t number, const Round& round);
  void follow_local_steps(std::uint32_t number, const Round& round);
  void copy_after(std::uint32_t number, const Span& span);
  void hold(const Span& span, Moment since);
  std::uint32_t count_held(const Span& span, Moment now) const;
  bool is_mixed(const Span& span, Moment now) const;
  void add_copies(const Span& span, Moment now, Round& round) const;
  Span where(Span span, Moment now, Round& round) const;

  const Schedule base_;
  std::vector<Moment> held_since_;
  std::vector<std::pair<std::uint32_t, Span>> copies_;  // at the ends of rounds, in order
};

OutOfPlace::OutOfPlace(Schedule in_place)
    : base_(std::move(in_place)), held_since_(base_.chunks, kNever) {
  const auto rounds = static_cast<std::uint32_t>(base_.rounds.size());
  Replay({&base_, 1}).in_step([&](std::size_t, std::size_t round, const Round& steps) {
    const auto number = static_cast<std::uint32_t>(round);
    follow_messages(number, steps);
    follow_local_steps(number, steps);
  });
  copy_after(std::max(rounds, 1U) - 1, result_of(base_));
}

// If the work buffer holds only a part of a message's chunks, the rest is copied there before the
// round. That may have the same effect on another message, so this repeats until nothing changes.
void OutOfPlace::follow_messages(std::uint32_t number, const Round& round) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const Step& step : round) {
      if (step.kind != StepKind::kSend || !is_mixed(step.source, {number, 0})) continue;
      // Before the first round work holds nothing, so number > 0.
      copy_after(number - 1, step.source);
      changed = true;
    }
  }
  for (const Step& step : round) {
    if (step.kind == StepKind::kRecv) hold(step.target, {number, 0});
  }
}

void OutOfPlace::follow_local_steps(std::uint32_t number, const Round& round) {
  Moment now{number, 0};
  for (const Step& step : round) {
    if (is_message(step.kind)) continue;
    ++now.second;
    if (is_mixed(step.source, now)) hold(step.source, now);
    if (reads_operand(step.kind) && is_mixed(step.operand, now)) hold(step.operand, now);
    hold(step.target, now);
  }
}

void OutOfPlace::copy_after(std::uint32_t number, const Span& span) {
  Round added;
  add_copies(span, {number, kEnd}, added);
  for (const Step& step : added) copies_.emplace_back(number, step.target);
  hold(span, {number, kEnd});
}

void OutOfPlace::hold(const Span& span, Moment since) {
  if (span.buffer != BufferId::kWork) return;
  for (std::uint32_t chunk = span.first; chunk < span.first + span.chunks; ++chunk) {
    held_since_[chunk] = std::min(held_since_[chunk], since);
  }
}

std::uint32_t OutOfPlace::count_held(const Span& span, Moment now) const {
  const auto first = held_since_.begin() + span.first;
  return static_cast<std::uint32_t>(
      std::count_if(first, first + span.chunks, [&](Moment since) { return since < now; }));
}

bool OutOfPlace::is_mixed(const Span& span, Moment now) const {
  if (span.buffer != BufferId::kWork) return false;
  const std::uint32_t held = count_held(span, now);
  return held > 0 && held < span.chunks;
}

// Adds one copy for each run of chunks that the work buffer does not hold.
void OutOfPlace::add_copies(const Span& span, Moment now, Round& round) const {
  const std::uint32_t end = span.first + span.chunks;
  for (std::uint32_t first = span.first; first < end; ++first) {
    std::uint32_t last = first;
    while (last < end && !(held_since_[last] < now)) ++last;
    if (last > first) round.push_back(copy(input(first, last - first), work(first, last - first)));
    first = last;
  }
}

// Where a step may read what the in-place schedule has in `span`.
Span OutOfPlace::where(Span span, Moment now, Round& round) const {
  if (span.buffer != BufferId::kWork) return span;
  if (count_held(span, now) == 0) return input(span.first, span.chunks);
  add_copies(span, now, round);
  return span;
}

Round OutOfPlace::round(std::uint32_t number) const {
  Round round;
  Moment now{number, 0};
  if (number < base_.rounds.size()) {
    for (Step step : base_.rounds[number]) {
      now.second += is_message(step.kind) ? 0 : 1;
      const Moment at = is_message(step.kind) ? Moment{number, 0} : now;
      if (reads_source(step.kind)) step.source = where(step.source, at, round);
      if (reads_operand(step.kind)) step.operand = where(step.operand, at, round);
      round.push_back(step);
    }
  }
  const auto [begin, end] =
      std::equal_range(copies_.begin(), copies_.end(), std::pair{number, Span{}},
                       [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto copied = begin; copied != end; ++copied) {
    const Span& span = copied->second;
    round.push_back(copy(input(span.first, span.chunks), span));
  }
  return round;
}

}  // namespace

Schedule from_input(Schedule schedule) {
  check(schedule.in_place, "a schedule that reads its input elsewhere already");
  const auto table = std::make_shared<const OutOfPlace>(schedule);
  schedule.rounds = Rounds(std::max(static_cast<int>(schedule.rounds.size()), 1), [=](int number) {
    return table->round(static_cast<std::uint32_t>(number));
  });
  schedule.in_place = false;
  return schedule;
}

}  // namespace gradred
