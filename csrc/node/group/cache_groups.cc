#include "node/group/cache_groups.h"

#include <algorithm>

#include "base/clock.h"

namespace gradred {
namespace {

// A rank as it joins those that are joined already, by the fastest pair (Prim's algorithm).
struct Link {
  std::size_t rank, to;
  float latency;
};

std::vector<Link> links(std::span<const float> latencies, std::size_t ranks) {
  std::vector<Link> done, rest;
  for (std::size_t rank = 1; rank < ranks; ++rank) rest.push_back({rank, 0, latencies[rank]});
  while (!rest.empty()) {
    const auto next = std::ranges::min_element(rest, {}, &Link::latency);
    const Link link = *next;
    rest.erase(next);
    done.push_back(link);
    for (Link& other : rest) {
      const float latency = latencies[link.rank * ranks + other.rank];
      if (latency < other.latency) other = {other.rank, link.rank, latency};
    }
  }
  return done;
}

// The lowest latency that separates groups; kUnmeasured: none does.
float end_of_gap(std::span<const Link> links) {
  std::vector<float> sorted;
  for (const Link& link : links) sorted.push_back(link.latency);
  std::ranges::sort(sorted);
  float widest = kLeastGap, end = kUnmeasured;
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i] < widest * sorted[i - 1]) continue;
    widest = sorted[i] / sorted[i - 1];
    end = sorted[i];
  }
  return end;
}

// The peer of a rank in a round in which all ranks meet in pairs, each pair once in all rounds. A
// peer `ranks` stands for nobody, if their number is odd (the circle method).
std::size_t peer_in(std::size_t round, std::size_t rank, std::size_t ranks) {
  const std::size_t last = ranks - 1 + ranks % 2;
  if (rank == last) return round;
  if (rank == round) return last;
  return (2 * round + last - rank) % last;
}

// Each rank's short slot: its latencies to all ranks, and at its own place kUnmeasured if its time
// was over before; then that of rank 0: the groups.
template <class T>
std::span<T> row_of(const NodeAgreement& group, std::size_t rank) {
  std::byte* const slot = group.part().short_slot(rank, group.operation());
  return {reinterpret_cast<T*>(slot), static_cast<std::size_t>(group.size())};
}

// A rank whose time is over sets its flag to the value that ends all turns, so that no peer waits
// for it.
void measure_peers(NodeAgreement& group, std::uint64_t deadline_ns) {
  constexpr unsigned kTurns = 8, kBatches = 3;  // the first batch also waits for the peer
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto me = static_cast<std::size_t>(group.rank());
  const std::span<float> row = row_of<float>(group, me);
  std::atomic<std::uint64_t>& flag = group.part().state(me).flag;
  std::uint64_t from = flag.load(std::memory_order_relaxed);
  row[me] = 0;
  for (std::size_t round = 0; round + 1 < ranks + ranks % 2; ++round) {
    const std::size_t peer = peer_in(round, me, ranks);
    float best = kUnmeasured;
    for (unsigned batch = 0; batch < kBatches; ++batch, from += kTurns) {
      if (now_ns() >= deadline_ns) row[me] = kUnmeasured;
      if (peer >= ranks || row[me] == kUnmeasured) continue;
      const double ns = flag_latency_ns(group, peer, from, kTurns);
      if (batch > 0) best = std::min(best, static_cast<float>(ns));
    }
    if (peer < ranks) row[peer] = best;
  }
  // Alike on all ranks, also on one that paused or stopped.
  group.waiter().publish(flag, from, group.part().state(me).bell);
}

// On rank 0, when all have measured. Both ranks of a pair have timed the same turns.
std::vector<float> all_latencies(const NodeAgreement& group) {
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<float> all(ranks * ranks);
  for (std::size_t a = 0; a < ranks; ++a) {
    for (std::size_t b = 0; b < ranks; ++b) {
      all[a * ranks + b] = std::min(row_of<float>(group, a)[b], row_of<float>(group, b)[a]);
    }
  }
  return all;
}

}  // namespace

double flag_latency_ns(NodeAgreement& group, std::size_t peer, std::uint64_t from, unsigned turns) {
  const auto me = static_cast<std::size_t>(group.rank());
  RankState &mine = group.part().state(me), &theirs = group.part().state(peer);
  Waiter& waiter = group.waiter();
  const bool first = me < peer;
  const std::uint64_t start = now_ns();
  for (std::uint64_t turn = from + 1; turn <= from + turns; ++turn) {
    if (first) waiter.publish(mine.flag, turn, mine.bell);
    waiter.wait({&theirs.flag, turn, &theirs.bell, waiter.expected()});
    if (!first) waiter.publish(mine.flag, turn, mine.bell);
  }
  return static_cast<double>(now_ns() - start) / (2.0 * turns);
}

std::vector<std::uint32_t> worthwhile_groups(std::span<const std::uint32_t> groups) {
  std::vector<std::uint32_t> names, members, numbers;
  for (const std::uint32_t group : groups) {
    const auto at = static_cast<std::size_t>(std::ranges::find(names, group) - names.begin());
    if (at == names.size()) {
      names.push_back(group);
      members.push_back(0);
    }
    ++members[at];
    numbers.push_back(static_cast<std::uint32_t>(at));
  }
  if (std::ranges::min(members) < 2) std::ranges::fill(numbers, 0);
  return numbers;
}

std::vector<std::uint32_t> linked_ranks(std::span<const float> latencies, std::size_t ranks) {
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (latencies[rank * ranks + rank] == kUnmeasured) return std::vector<std::uint32_t>(ranks, 0);
  }
  const std::vector<Link> found = links(latencies, ranks);
  const float end = end_of_gap(found);
  std::vector<std::uint32_t> groups(ranks, 0);
  for (const Link& link : found) {
    groups[link.rank] =
        link.latency < end ? groups[link.to] : static_cast<std::uint32_t>(link.rank);
  }
  return worthwhile_groups(groups);
}

std::vector<std::uint32_t> measured_cache_groups(NodeAgreement& group, std::uint64_t limit_ns) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const Signature signature = make_signature(Kind::kAllreduce, Op::kMin, DType::kFloat32, ranks);
  std::vector<std::uint32_t> groups;
  group.operate(nullptr, [&] {
    group.announce(signature, nullptr, 0);
    group.await_announcements(signature);
    measure_peers(group, now_ns() + limit_ns);
    group.step_done(1);
    const std::span<std::uint32_t> decided = row_of<std::uint32_t>(group, 0);
    if (group.rank() == 0) {
      for (std::size_t rank = 1; rank < ranks; ++rank) group.waiter().wait(group.step_of(rank, 1));
      std::ranges::copy(linked_ranks(all_latencies(group), ranks), decided.begin());
      group.step_done(2);
    }
    group.waiter().wait(group.step_of(0, 2));
    groups.assign(decided.begin(), decided.end());
    group.steps_end(2);
  });
  return groups;
}

}  // namespace gradred
