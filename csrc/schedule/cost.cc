#include "schedule/cost.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "schedule/partition.h"
#include "schedule/replay.h"

namespace gradred {
namespace {

// Chunks that a rank or host sends and receives on one kind of link.
struct Flow {
  double out = 0, in = 0, distant_out = 0, distant_in = 0;

  void add(bool sends, double chunks, bool is_distant) {
    (sends ? out : in) += chunks;
    if (is_distant) (sends ? distant_out : distant_in) += chunks;
  }
  void add(const Flow& other) {
    out += other.out;
    in += other.in;
    distant_out += other.distant_out;
    distant_in += other.distant_in;
  }
  double moved() const { return std::max(out, in); }
  double distant() const { return std::max(distant_out, distant_in); }
};

// What one rank does in one round.
struct RankRound {
  Flow inside, across;
  double reduced = 0, copied = 0, coded = 0, sent = 0, received = 0;
  bool crosses = false;
};

bool are_neighbours(int a, int b, int size) {
  const int distance = std::abs(a - b);
  return distance == 1 || distance == size - 1;
}

RankRound look_at(const Round& round, const Schedule& schedule, const Topology& topology) {
  const auto host = [&](int rank) { return topology.host_of[static_cast<std::size_t>(rank)]; };
  RankRound sum;
  for (const Step& step : round) {
    const Span& span = reads_source(step.kind) ? step.source : step.target;
    double chunks = span.chunks;
    if (!is_message(step.kind)) {
      (uses_codec(step)                 ? sum.coded
       : step.kind == StepKind::kReduce ? sum.reduced
                                        : sum.copied) += chunks;
      continue;
    }
    if (span.buffer == BufferId::kCoded) chunks *= wire_share(schedule.wire);
    const bool sends = step.kind == StepKind::kSend;
    const bool crosses = host(step.peer) != host(schedule.rank);
    ++(sends ? sum.sent : sum.received);
    sum.crosses |= crosses;
    (crosses ? sum.across : sum.inside)
        .add(sends, chunks, !are_neighbours(step.peer, schedule.rank, schedule.size));
  }
  return sum;
}

// The busiest rank and the busiest host of one round.
class Busiest {
 public:
  explicit Busiest(std::size_t hosts) : across_(hosts) {}

  void clear() {
    rank_ = {};
    inside_ = {};
    std::ranges::fill(across_, Flow{});
  }
  void include(const RankRound& rank, std::size_t host) {
    rank_.crosses |= rank.crosses;
    rank_.reduced = std::max(rank_.reduced, rank.reduced);
    rank_.copied = std::max(rank_.copied, rank.copied);
    rank_.coded = std::max(rank_.coded, rank.coded);
    rank_.sent = std::max(rank_.sent, rank.sent);
    rank_.received = std::max(rank_.received, rank.received);
    inside_.moved = std::max(inside_.moved, rank.inside.moved());
    inside_.distant = std::max(inside_.distant, rank.inside.distant());
    across_[host].add(rank.across);
  }
  void add_to(Cost& total) const {
    const double messages = std::max(rank_.sent, rank_.received);
    if (messages > 0) ++(rank_.crosses ? total.across : total.inside).rounds;
    total.messages += std::max(messages, 1.0) - 1;
    total.sent += rank_.sent;
    total.reduced += rank_.reduced;
    total.copied += rank_.copied;
    total.coded += rank_.coded;
    total.inside.moved += inside_.moved;
    total.inside.distant += inside_.distant;
    Cost::OnLink across;
    for (const Flow& host : across_) {
      across.moved = std::max(across.moved, host.moved());
      across.distant = std::max(across.distant, host.distant());
    }
    total.across.moved += across.moved;
    total.across.distant += across.distant;
  }

 private:
  RankRound rank_;
  Cost::OnLink inside_;
  std::vector<Flow> across_;  // by host
};

// For each schedule the number of its host; the numbers are from 0 without gaps.
std::vector<std::size_t> hosts_of(const std::vector<Schedule>& schedules,
                                  const Topology& topology) {
  std::vector<int> seen;
  std::vector<std::size_t> numbers;
  for (const Schedule& schedule : schedules) {
    const int host = topology.host_of[static_cast<std::size_t>(schedule.rank)];
    const auto found = std::ranges::find(seen, host);
    numbers.push_back(static_cast<std::size_t>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(host);
  }
  return numbers;
}

// An algorithm treats its ranks alike, with these exceptions. Folding gives most work to the first
// rank of the first block. The root of a broadcast sends most. The runs of chunks of the last rank
// wrap around the end of the vector, which splits a message into two. Groups other than the root's
// share at the end what they received. Between hosts the ranks of a host count together. If there
// are many ranks, those of the fullest host are used; else all.
std::vector<int> busiest_ranks(const Topology& topology, int root) {
  constexpr int kFew = 64;
  const auto size = static_cast<int>(topology.host_of.size());
  std::vector<int> ranks = {root, (root + size - 1) % size, (root + size / 2) % size};
  if (topology.hosts > 1) {
    std::vector<std::size_t> ranks_on(static_cast<std::size_t>(topology.hosts), 0);
    for (const int host : topology.host_of) ++ranks_on[static_cast<std::size_t>(host)];
    const auto fullest = std::ranges::max_element(ranks_on) - ranks_on.begin();
    for (int rank = 0; rank < size; ++rank) {
      const bool is_there = topology.host_of[static_cast<std::size_t>(rank)] == fullest;
      if (is_there || size <= kFew) ranks.push_back(rank);
    }
  }
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  return ranks;
}

}  // namespace

Traffic traffic(const Schedule& schedule, std::size_t bytes) {
  const Partition partition{bytes, schedule.chunks};
  Traffic sum;
  Replay({&schedule, 1}).in_step([&](std::size_t, std::size_t, const Round& round) {
    for (const Step& step : round) {
      const Span& span = reads_source(step.kind) ? step.source : step.target;
      std::size_t length = partition.length(span.first, span.chunks);
      if (uses_codec(step)) {
        sum.coded += length;
        continue;
      }
      if (span.buffer == BufferId::kCoded)
        length = wire_bytes(schedule.wire, length / sizeof(float));
      if (step.kind == StepKind::kSend) ++sum.messages, sum.sent += length;
      if (step.kind == StepKind::kRecv) sum.received += length;
      if (step.kind == StepKind::kReduce) sum.reduced += length;
      if (step.kind == StepKind::kCopy) sum.copied += length;
    }
  });
  return sum;
}

double Cost::seconds(std::size_t bytes, const CostModel& model, std::size_t slices) const {
  const auto n = static_cast<double>(bytes), k = static_cast<double>(slices);
  const auto on = [&](const OnLink& use, const Link& link) {
    return (use.moved + model.far * use.distant) * link.beta;
  };
  const double latency = inside.rounds * model.inside.alpha + across.rounds * model.across.alpha +
                         messages * model.gap + (k - 1) * sent * model.gap +
                         k * on_host * model.on_host;
  const double wire = on(inside, model.inside) + on(across, model.across);
  const double local = (reduced + kCodec * coded) * model.gamma + copied * model.delta;
  return latency + n * (std::max(wire, local) + std::min(wire, local) / k);
}

std::size_t Cost::best_slices(std::size_t bytes, const CostModel& model, std::size_t most) const {
  std::size_t best = 1;
  for (std::size_t slices = 2; slices <= most; slices *= 2) {
    if (seconds(bytes, model, slices) < seconds(bytes, model, best)) best = slices;
  }
  return best;
}

Cost cost(const std::vector<Schedule>& schedules, const Topology& topology) {
  Cost total;
  const std::vector<std::size_t> hosts = hosts_of(schedules, topology);
  Busiest busiest(hosts.empty() ? 0 : 1 + *std::ranges::max_element(hosts));
  Replay(schedules).in_step(
      [&](std::size_t i, std::size_t, const Round& round) {
        busiest.include(look_at(round, schedules[i], topology), hosts[i]);
      },
      [&] {
        busiest.add_to(total);
        busiest.clear();
      });
  const double chunks = schedules.empty() ? 1 : schedules.front().chunks;
  for (double* vectors : {&total.inside.moved, &total.inside.distant, &total.across.moved,
                          &total.across.distant, &total.reduced, &total.copied, &total.coded}) {
    *vectors /= chunks;
  }
  return total;
}

Cost cost(Kind collective, std::string_view name, const Parameters& parameters,
          const Topology& topology) {
  const auto size = static_cast<int>(topology.host_of.size());
  std::vector<int> ranks = busiest_ranks(topology, parameters.root);
  // Ranks may work one after the other, and with a root their blocks may wrap around the end of the
  // vector.
  const bool differs = sums_differ(collective) || (has_root(collective) && has_blocks(collective));
  if (differs) {
    ranks.resize(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  std::vector<Schedule> schedules;
  for (const int rank : ranks) {
    schedules.push_back(make_schedule(collective, name, rank, size, parameters));
  }
  return cost(schedules, topology);
}

Cost cost_across_groups(Kind collective, const Parameters& parameters, const Topology& topology) {
  const auto size = static_cast<int>(topology.host_of.size());
  std::vector<Schedule> schedules;
  for (const int rank : busiest_ranks(topology, 0)) {
    schedules.push_back(make_across_groups(collective, rank, size, parameters));
  }
  return cost(schedules, topology);
}

}  // namespace gradred
