#include "schedule/cost.h"

#include <algorithm>

#include "schedule/partition.h"

namespace gradred {
namespace {

Traffic traffic(const Round& round, const Partition& partition) {
  Traffic sum;
  for (const Step& step : round) {
    const Span& span = reads_source(step.kind) ? step.source : step.target;
    const std::size_t bytes = partition.length(span.first, span.chunks);
    if (step.kind == StepKind::kSend) ++sum.messages, sum.sent += bytes;
    if (step.kind == StepKind::kRecv) sum.received += bytes;
    if (step.kind == StepKind::kReduce) sum.reduced += bytes;
  }
  return sum;
}

}  // namespace

Traffic traffic(const Schedule& schedule, std::size_t bytes) {
  Traffic total;
  for (const Round& round : schedule.rounds) {
    const Traffic part = traffic(round, {bytes, schedule.chunks});
    total.messages += part.messages;
    total.sent += part.sent;
    total.received += part.received;
    total.reduced += part.reduced;
  }
  return total;
}

double cost(const std::vector<Schedule>& schedules, std::size_t bytes, const CostModel& model) {
  std::vector<double> rounds;
  for (const Schedule& schedule : schedules) {
    if (rounds.size() < schedule.rounds.size()) rounds.resize(schedule.rounds.size());
    for (std::size_t i = 0; i < schedule.rounds.size(); ++i) {
      const Traffic part = traffic(schedule.rounds[i], {bytes, schedule.chunks});
      const bool talks = std::any_of(schedule.rounds[i].begin(), schedule.rounds[i].end(),
                                     [](const Step& step) { return is_message(step.kind); });
      const double seconds = (talks ? model.alpha : 0) +
                             static_cast<double>(std::max(part.sent, part.received)) * model.beta +
                             static_cast<double>(part.reduced) * model.gamma;
      rounds[i] = std::max(rounds[i], seconds);
    }
  }
  double total = 0;
  for (const double seconds : rounds) total += seconds;
  return total;
}

}  // namespace gradred
