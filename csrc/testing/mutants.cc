#include "testing/mutants.h"

#include <random>
#include <utility>

#include "schedule/verify.h"

namespace gradred {
namespace {

struct Mutant {
  std::string change;
  std::vector<Step> replacement;
};

// Spans of a step that a mutant changes together.
struct Ends {
  const char* name;
  std::vector<Span Step::*> spans;
};
const Ends kSource = {"source", {&Step::source}};
const Ends kTarget = {"target", {&Step::target}};
const Ends kOperand = {"operand", {&Step::operand}};
const Ends kTargetAndOperand = {"target and operand", {&Step::target, &Step::operand}};

class Mutator {
 public:
  explicit Mutator(const Schedule& schedule) : schedule_(schedule) {}

  std::vector<Mutant> mutants(const Step& step) {
    mutants_ = {{"drop", {}}, {"duplicate", {step, step}}};
    if (is_message(step.kind)) {
      change_peer(step);
      change_span(step, step.kind == StepKind::kSend ? kSource : kTarget);
    } else {
      const bool reduces = step.kind == StepKind::kReduce;
      mutants_.push_back(
          {"kind", {reduces ? copy(step.source, step.target) : reduce(step.source, step.target)}});
      exchange(step);
      change_span(step, kSource);
      change_span(step, kTarget);
      if (reduces) change_span(step, kOperand);
      if (reduces && step.operand == step.target) change_span(step, kTargetAndOperand);
      change_all(step);
    }
    return std::move(mutants_);
  }

 private:
  void change_peer(const Step& step) {
    for (int peer = 0; peer < schedule_.size; ++peer) {
      if (peer == step.peer || peer == schedule_.rank) continue;
      Step other = step;
      other.peer = peer;
      mutants_.push_back({"peer " + std::to_string(peer), {other}});
    }
  }

  // Source and operand of a reduction are symmetric, so exchanging them would change nothing.
  void exchange(const Step& step) {
    Step other = step;
    std::swap(other.source, other.target);
    if (step.operand == step.target) other.operand = other.target;
    mutants_.push_back({"source and target exchanged", {other}});
    if (step.kind != StepKind::kReduce || step.operand == step.target) return;
    other = step;
    std::swap(other.operand, other.target);
    mutants_.push_back({"operand and target exchanged", {other}});
  }

  void add(const Step& step, const Ends& ends, const char* what, const Span& span) {
    Step other = step;
    for (Span Step::* const end : ends.spans) other.*end = span;
    if (other == step) return;
    mutants_.push_back({what + (" of " + std::string(ends.name)) + ": " + describe(span), {other}});
  }

  void change_span(const Step& step, const Ends& ends) {
    const Span original = step.*ends.spans.front();
    Span span = original;
    for (const BufferId buffer : {BufferId::kWork, BufferId::kScratch, BufferId::kInput}) {
      span.buffer = buffer;
      if (buffer != BufferId::kInput || !schedule_.in_place) add(step, ends, "buffer", span);
    }
    for (std::uint32_t first = 0; first < schedule_.chunks; ++first) {
      span = original;
      span.first = first;
      add(step, ends, "first chunk", span);
    }
    for (const int by : {-1, 1}) {
      span = original;
      span.chunks += static_cast<std::uint32_t>(by);
      add(step, ends, "chunks", span);
    }
    if (original.buffer != BufferId::kScratch) return;
    for (std::uint32_t slot = 0; slot < schedule_.scratch_slots; ++slot) {
      span = original;
      span.slot = slot;
      add(step, ends, "slot", span);
    }
  }

  void change_all(const Step& step) {
    const auto push = [&](std::uint32_t first, std::uint32_t chunks) {
      Step other = step;
      other.source.first = other.target.first = other.operand.first = first;
      other.source.chunks = other.target.chunks = other.operand.chunks = chunks;
      if (step.kind != StepKind::kReduce) other.operand = step.operand;
      if (other != step) mutants_.push_back({"all ends: " + describe(other), {other}});
    };
    for (std::uint32_t first = 0; first < schedule_.chunks; ++first) {
      push(first, step.source.chunks);
    }
    push(step.source.first, step.source.chunks - 1);
    push(step.source.first, step.source.chunks + 1);
  }

  const Schedule& schedule_;
  std::vector<Mutant> mutants_;
};

struct Where {
  std::size_t rank, round, step;
};

std::vector<Where> all_steps(const std::vector<Schedule>& schedules) {
  std::vector<Where> places;
  Round room;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    for (std::size_t round = 0; round < schedules[rank].rounds.size(); ++round) {
      const std::size_t steps = schedules[rank].rounds.at(round, room).size();
      for (std::size_t step = 0; step < steps; ++step) places.push_back({rank, round, step});
    }
  }
  return places;
}

// Verifies the schedules with one step replaced, then restores the step.
void judge(std::vector<Schedule>& schedules, const Where& where, const Mutant& mutant,
           std::uint64_t digest, MutationResult& result) {
  Rounds& rounds = schedules[where.rank].rounds;
  const Rounds original = rounds;
  std::vector<Round> list;
  for (Round each : rounds) list.push_back(std::move(each));
  Round& round = list[where.round];
  const Step step = round[where.step];
  const auto at = round.begin() + static_cast<std::ptrdiff_t>(where.step);
  round.insert(round.erase(at), mutant.replacement.begin(), mutant.replacement.end());
  rounds = std::move(list);
  const Report report = verify(schedules);
  rounds = original;
  ++result.mutants;
  if (!report.ok) {
    ++result.rejected;
    return;
  }
  const Problem place{static_cast<int>(where.rank), static_cast<int>(where.round),
                      static_cast<int>(where.step), describe(step) + ": " + mutant.change};
  (report.digest == digest ? result.equivalent : result.different).push_back(describe(place));
}

}  // namespace

MutationResult mutation_test(std::vector<Schedule> schedules, std::size_t sample,
                             std::uint64_t seed) {
  const Report report = verify(schedules);
  if (!report.ok) throw ScheduleError(report.problem);
  for (Schedule& schedule : schedules) schedule.rounds = schedule.rounds.held_within(SIZE_MAX);
  const std::vector<Where> places = all_steps(schedules);
  const auto mutants_at = [&](const Where& where) {
    const Schedule& schedule = schedules[where.rank];
    return Mutator(schedule).mutants(schedule.rounds[where.round][where.step]);
  };
  MutationResult result;
  if (sample == 0) {
    for (const Where& where : places) {
      for (const Mutant& mutant : mutants_at(where)) {
        judge(schedules, where, mutant, report.digest, result);
      }
    }
    return result;
  }
  std::mt19937_64 random(seed);  // % gives the same sample with every standard library
  for (std::size_t i = 0; i < sample && !places.empty(); ++i) {
    const Where& where = places[random() % places.size()];
    const std::vector<Mutant> mutants = mutants_at(where);
    judge(schedules, where, mutants[random() % mutants.size()], report.digest, result);
  }
  return result;
}

}  // namespace gradred
