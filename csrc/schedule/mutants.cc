#include "schedule/mutants.h"

#include <random>
#include <utility>

#include "schedule/verify.h"

namespace gradred {
namespace {

struct Mutant {
  std::string change;
  std::vector<Step> replacement;
};

class Mutator {
 public:
  explicit Mutator(const Schedule& schedule) : schedule_(schedule) {}

  std::vector<Mutant> mutants(const Step& step) {
    mutants_ = {{"drop", {}}, {"duplicate", {step, step}}};
    if (is_message(step.kind)) {
      change_peer(step);
      change_span(step, step.kind == StepKind::kSend ? &Step::source : &Step::target);
    } else {
      Step other = step;
      other.kind = step.kind == StepKind::kReduce ? StepKind::kCopy : StepKind::kReduce;
      mutants_.push_back({"kind", {other}});
      other = step;
      std::swap(other.source, other.target);
      mutants_.push_back({"operands exchanged", {other}});
      change_span(step, &Step::source);
      change_span(step, &Step::target);
      change_both(step);
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

  void add(const Step& step, Span Step::* end, const char* what, const Span& span) {
    Step other = step;
    other.*end = span;
    if (other == step) return;
    const char* name = end == &Step::source ? " of source: " : " of target: ";
    mutants_.push_back({what + (name + describe(span)), {other}});
  }

  void change_span(const Step& step, Span Step::* end) {
    Span span = step.*end;
    span.buffer = span.buffer == BufferId::kWork ? BufferId::kScratch : BufferId::kWork;
    add(step, end, "buffer", span);
    for (std::uint32_t first = 0; first < schedule_.chunks; ++first) {
      span = step.*end;
      span.first = first;
      add(step, end, "first chunk", span);
    }
    for (const int by : {-1, 1}) {
      span = step.*end;
      span.chunks += static_cast<std::uint32_t>(by);
      add(step, end, "chunks", span);
    }
    if ((step.*end).buffer == BufferId::kWork) return;
    for (std::uint32_t slot = 0; slot < schedule_.scratch_slots; ++slot) {
      span = step.*end;
      span.slot = slot;
      add(step, end, "slot", span);
    }
  }

  void change_both(const Step& step) {
    const auto push = [&](const char* what, std::uint32_t first, std::uint32_t chunks) {
      Step other = step;
      other.source.first = other.target.first = first;
      other.source.chunks = other.target.chunks = chunks;
      if (other != step) mutants_.push_back({what + describe(other), {other}});
    };
    for (std::uint32_t first = 0; first < schedule_.chunks; ++first) {
      push("both ends: ", first, step.source.chunks);
    }
    push("both ends: ", step.source.first, step.source.chunks - 1);
    push("both ends: ", step.source.first, step.source.chunks + 1);
  }

  const Schedule& schedule_;
  std::vector<Mutant> mutants_;
};

struct Where {
  std::size_t rank, round, step;
};

std::vector<Where> all_steps(const std::vector<Schedule>& schedules) {
  std::vector<Where> places;
  for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
    for (std::size_t round = 0; round < schedules[rank].rounds.size(); ++round) {
      for (std::size_t step = 0; step < schedules[rank].rounds[round].size(); ++step) {
        places.push_back({rank, round, step});
      }
    }
  }
  return places;
}

// Verifies the schedules with one step replaced, and puts it back.
void judge(std::vector<Schedule>& schedules, const Where& where, const Mutant& mutant,
           std::uint64_t digest, MutationResult& result) {
  Round& round = schedules[where.rank].rounds[where.round];
  const Round original = round;
  const auto at = round.begin() + static_cast<std::ptrdiff_t>(where.step);
  round.insert(round.erase(at), mutant.replacement.begin(), mutant.replacement.end());
  const Report report = verify(schedules);
  round = original;
  ++result.mutants;
  if (!report.ok) {
    ++result.rejected;
    return;
  }
  const Problem place{static_cast<int>(where.rank), static_cast<int>(where.round),
                      static_cast<int>(where.step),
                      describe(original[where.step]) + ": " + mutant.change};
  (report.digest == digest ? result.equivalent : result.different).push_back(describe(place));
}

}  // namespace

MutationResult mutation_test(std::vector<Schedule> schedules, std::size_t sample,
                             std::uint64_t seed) {
  const Report report = verify(schedules);
  if (!report.ok) throw ScheduleError(report.problem);
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
  std::mt19937_64 random(seed);  // % keeps the sample the same with every standard library
  for (std::size_t i = 0; i < sample && !places.empty(); ++i) {
    const Where& where = places[random() % places.size()];
    const std::vector<Mutant> mutants = mutants_at(where);
    judge(schedules, where, mutants[random() % mutants.size()], report.digest, result);
  }
  return result;
}

}  // namespace gradred
