#include "plan/model.h"

#include <algorithm>
#include <cmath>

namespace gradred {
namespace {

// What the ranks of one host do in a round, in shares of the vector.
struct RoundTraffic {
  double across_out = 0, across_in = 0;  // of all of them together
  double inside = 0;                     // of the rank with most to move
  double reduced = 0, copied = 0;        // likewise
  double sent = 0, received = 0;         // messages, likewise
  bool crosses = false;
};

bool are_neighbours(int a, int b, int size) {
  const int distance = std::abs(a - b);
  return distance == 1 || distance == size - 1;
}

// Adds what one rank does.
void add(const Schedule& schedule, const Round& round, const Topology& topology, double far,
         RoundTraffic& sum) {
  const auto host = [&](int rank) { return topology.host_of[static_cast<std::size_t>(rank)]; };
  double out = 0, in = 0, reduced = 0, copied = 0, sent = 0, received = 0;
  for (const Step& step : round) {
    const Span& span = reads_source(step.kind) ? step.source : step.target;
    double share = static_cast<double>(span.chunks) / static_cast<double>(schedule.chunks);
    if (step.kind == StepKind::kReduce) reduced += share;
    if (step.kind == StepKind::kCopy) copied += share;
    if (!is_message(step.kind)) continue;
    const bool sends = step.kind == StepKind::kSend;
    ++(sends ? sent : received);
    if (!are_neighbours(step.peer, schedule.rank, schedule.size)) share *= 1 + far;
    const bool crosses = host(step.peer) != host(schedule.rank);
    sum.crosses |= crosses;
    if (crosses) {
      (sends ? sum.across_out : sum.across_in) += share;
    } else {
      (sends ? out : in) += share;
    }
  }
  sum.inside = std::max({sum.inside, out, in});
  sum.reduced = std::max(sum.reduced, reduced);
  sum.copied = std::max(sum.copied, copied);
  sum.sent = std::max(sum.sent, sent);
  sum.received = std::max(sum.received, received);
}

}  // namespace

Model assumed_messages() {
  return {.inside = {1e-6, 0.1e-9},
          .across = {2e-6, 0.1e-9},
          .gap = 0.5e-6,
          .gamma = 0.05e-9,
          .delta = 0.05e-9,
          .far = 0.05};
}

double Shape::seconds(std::size_t bytes, std::size_t slices, const Model& model) const {
  const auto n = static_cast<double>(bytes), k = static_cast<double>(slices);
  return latency + (k - 1) * messages * model.gap + std::max(wire, local) * n +
         std::min(wire, local) * n / k;
}

std::size_t Shape::best_slices(std::size_t bytes, std::size_t most, const Model& model) const {
  std::size_t best = 1;
  for (std::size_t slices = 2; slices <= most; slices *= 2) {
    if (seconds(bytes, slices, model) < seconds(bytes, best, model)) best = slices;
  }
  return best;
}

Shape shape_of(const std::vector<Schedule>& schedules, const Topology& topology,
               const Model& model) {
  Shape shape;
  std::size_t rounds = 0;
  for (const Schedule& schedule : schedules) rounds = std::max(rounds, schedule.rounds.size());
  for (std::size_t i = 0; i < rounds; ++i) {
    RoundTraffic sum;
    for (const Schedule& schedule : schedules) {
      if (i < schedule.rounds.size()) add(schedule, schedule.rounds[i], topology, model.far, sum);
    }
    const double across = std::max(sum.across_out, sum.across_in) * model.across.beta;
    shape.wire += std::max(across, sum.inside * model.inside.beta);
    shape.local += sum.reduced * model.gamma + sum.copied * model.delta;
    shape.messages += sum.sent;
    const double messages = std::max(sum.sent, sum.received);
    if (messages == 0) continue;
    shape.latency += sum.crosses ? model.across.alpha : model.inside.alpha;
    shape.latency += (messages - 1) * model.gap;
  }
  return shape;
}

std::vector<int> ranks_that_stand_for_all(const Topology& topology) {
  constexpr std::size_t kMost = 64;
  std::vector<std::size_t> ranks_on(static_cast<std::size_t>(topology.hosts), 0);
  for (const int host : topology.host_of) ++ranks_on[static_cast<std::size_t>(host)];
  const auto fullest = std::ranges::max_element(ranks_on) - ranks_on.begin();
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < topology.host_of.size() && ranks.size() < kMost; ++rank) {
    if (topology.host_of[rank] == fullest) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace gradred
