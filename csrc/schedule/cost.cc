#include "schedule/cost.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

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
    if (step.kind == StepKind::kCopy) sum.copied += bytes;
  }
  return sum;
}

// Of one round, over the ranks: messages, and chunks.
struct Busiest {
  std::size_t messages = 0, moved = 0, reduced = 0, copied = 0;

  void include(const Round& round, std::size_t chunks) {
    const Traffic part = traffic(round, {chunks, chunks});  // a vector of one byte per chunk
    const auto receives = std::count_if(
        round.begin(), round.end(), [](const Step& step) { return step.kind == StepKind::kRecv; });
    messages = std::max({messages, part.messages, static_cast<std::size_t>(receives)});
    moved = std::max({moved, part.sent, part.received});
    reduced = std::max(reduced, part.reduced);
    copied = std::max(copied, part.copied);
  }
};

// An algorithm treats its ranks alike, but that folding gives the first of the first block most to
// do, that the root of a broadcast sends most, and that the last rank's runs of chunks wrap around
// the end of the vector, which makes two messages of one.
std::vector<Schedule> busiest_ranks(Collective collective, std::string_view name, int size,
                                    const Parameters& parameters) {
  std::vector<Schedule> schedules;
  for (const int further : {0, size - 1}) {
    const int rank = (parameters.root + further) % size;
    schedules.push_back(make_schedule(collective, name, rank, size, parameters));
  }
  return schedules;
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
    total.copied += part.copied;
  }
  return total;
}

Cost cost(const std::vector<Schedule>& schedules) {
  Cost total;
  std::size_t rounds = 0;
  for (const Schedule& schedule : schedules) rounds = std::max(rounds, schedule.rounds.size());
  Round room;
  for (std::size_t number = 0; number < rounds; ++number) {
    Busiest busiest;
    for (const Schedule& schedule : schedules) {
      if (number < schedule.rounds.size()) {
        busiest.include(schedule.rounds.at(number, room), schedule.chunks);
      }
    }
    total.rounds += busiest.messages > 0 ? 1 : 0;
    total.messages += static_cast<double>(std::max<std::size_t>(busiest.messages, 1) - 1);
    total.moved += static_cast<double>(busiest.moved);
    total.reduced += static_cast<double>(busiest.reduced);
    total.copied += static_cast<double>(busiest.copied);
  }
  const double chunks = schedules.empty() ? 1 : schedules.front().chunks;
  total.moved /= chunks;
  total.reduced /= chunks;
  total.copied /= chunks;
  return total;
}

Cost cost(Collective collective, std::string_view name, int size, const Parameters& parameters) {
  using Key = std::tuple<Collective, std::string, int, int, int, int, std::string, std::string>;
  static std::mutex mutex;
  static std::map<Key, Cost> known;
  const Parameters& p = parameters;
  Key key{collective, std::string(name), size, p.root, p.k, p.local, p.inside, p.across};
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  const Cost found = cost(busiest_ranks(collective, name, size, parameters));
  const std::lock_guard lock(mutex);
  return known.emplace(std::move(key), found).first->second;
}

}  // namespace gradred
