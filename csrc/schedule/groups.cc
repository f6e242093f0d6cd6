#include "schedule/groups.h"

#include <utility>

#include "schedule/generators.h"

namespace gradred {
namespace {

// The messages of one round that carry blocks, in the order of the blocks. Adjacent blocks for the
// same peer form one message.
class BlockRound {
 public:
  explicit BlockRound(Schedule& schedule) : schedule_(schedule) {}

  void give(int peer, int block) { add(sends_, peer, block); }
  void take(int peer, int block) { add(receives_, peer, block); }

  // `reduced`: received blocks are added to those that the rank holds.
  void end(bool reduced) {
    Round round, sums;
    for (const Run& run : receives_) {
      Span inbox = work(run.first, run.blocks);
      if (reduced) {
        inbox = scratch(schedule_.scratch_slots, run.first, run.blocks);
        schedule_.scratch_slots += run.blocks;
        sums.push_back(reduce(inbox, work(run.first, run.blocks)));
      }
      round.push_back(recv(run.peer, inbox));
    }
    for (const Run& run : sends_) round.push_back(send(run.peer, work(run.first, run.blocks)));
    round.insert(round.end(), sums.begin(), sums.end());
    schedule_.rounds = joined(std::move(schedule_.rounds), {{round}});
  }

 private:
  struct Run {
    int peer;
    std::uint32_t first, blocks;
  };

  // Extends the last run of a peer if possible. Both ranks of a pair see the same blocks in the
  // same order, so both form the same messages.
  static void add(std::vector<Run>& runs, int peer, int block) {
    const auto first = static_cast<std::uint32_t>(block);
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      if (run->peer != peer) continue;
      if (run->first + run->blocks != first) break;
      ++run->blocks;
      return;
    }
    runs.push_back({peer, first, 1});
  }

  Schedule& schedule_;
  std::vector<Run> sends_, receives_;
};

bool by_leaders(const Lanes& lanes) { return lanes.count == 1; }

// Inside the group of `rank`: moves every block to the rank that carries it (reduce-scatter), or
// from there to the others (allgather).
void blocks_inside(Schedule& schedule, const Lanes& lanes) {
  const bool scatters = schedule.collective == Kind::kReduceScatterBlock;
  const std::size_t group = lanes.spot_of(schedule.rank).group;
  BlockRound round(schedule);
  for (int block = 0; block < schedule.size; ++block) {
    const int holder = carrier_of_block(lanes, block, group);
    for (const int member : lanes.groups[group]) {
      if (member == holder) continue;
      const int from = scatters ? member : holder, to = scatters ? holder : member;
      if (schedule.rank == from) round.give(to, block);
      if (schedule.rank == to) round.take(from, block);
    }
  }
  round.end(scatters);
}

// With leaders: moves each block of a group from its leader after it has crossed, or to the leader
// before.
void blocks_to_leader(Schedule& schedule, const Lanes& lanes) {
  const bool gathers = schedule.collective == Kind::kAllgather;
  const auto& members = lanes.groups[lanes.spot_of(schedule.rank).group];
  BlockRound round(schedule);
  for (const int member : members) {
    if (member == members.front()) continue;
    const int from = gathers ? member : members.front(), to = gathers ? members.front() : member;
    if (schedule.rank == from) round.give(to, member);
    if (schedule.rank == to) round.take(from, member);
  }
  round.end(false);
}

}  // namespace

int carrier_of_block(const Lanes& lanes, int block, std::size_t group) {
  const std::vector<int>& ranks = lanes.groups[group];
  if (by_leaders(lanes)) return ranks.front();
  const Lanes::Spot owner = lanes.spot_of(block);
  if (owner.group == group) return block;
  const auto count = static_cast<int>(ranks.size());
  return ranks[static_cast<std::size_t>(owner.place * count / owner.ranks)];
}

Schedule blocks_across(Kind collective, int rank, const Lanes& lanes) {
  const bool scatters = collective == Kind::kReduceScatterBlock;
  Schedule schedule = blank(collective, rank, lanes.size(), lanes.size());
  BlockRound round(schedule);
  for (int block = 0; block < schedule.size; ++block) {
    const std::size_t home = lanes.spot_of(block).group;
    const int owner = carrier_of_block(lanes, block, home);
    for (std::size_t group = 0; group < lanes.groups.size(); ++group) {
      if (group == home) continue;
      const int carrier = carrier_of_block(lanes, block, group);
      const int from = scatters ? carrier : owner, to = scatters ? owner : carrier;
      if (rank == from) round.give(to, block);
      if (rank == to) round.take(from, block);
    }
  }
  round.end(scatters);
  return schedule;
}

Schedule bcast_across(int rank, const Lanes& lanes, int root) {
  const auto from = static_cast<int>(lanes.spot_of(root).group);
  Schedule schedule = across_groups(
      rank, lanes, [from](int group, int groups) { return binomial_bcast(group, groups, from); });
  schedule.root = root;
  return schedule;
}

Schedule blocks_on_groups(Kind collective, int rank, const Lanes& lanes) {
  Schedule inside = blank(collective, rank, lanes.size(), lanes.size());
  Schedule across = blocks_across(collective, rank, lanes), ends = inside;
  blocks_inside(inside, lanes);
  if (by_leaders(lanes)) blocks_to_leader(ends, lanes);
  if (collective == Kind::kAllgather) std::swap(inside, ends);
  Schedule crossed = then(std::move(inside), std::move(across), collective);
  return then(std::move(crossed), std::move(ends), collective);
}

Schedule bcast_on_groups(int rank, const Lanes& lanes, int root) {
  Schedule across = bcast_across(rank, lanes, root);
  const auto chunks = static_cast<std::uint32_t>(across.chunks);
  const auto [group, place, ranks] = lanes.spot_of(rank);
  const bool has_it = lanes.spot_of(root).group == group;
  Schedule before = blank(Kind::kBcast, rank, lanes.size(), static_cast<int>(chunks));
  Schedule after = before;
  Round given, shared;
  for (const int member : lanes.groups[group]) {
    if (has_it && rank == root && member != root) given.push_back(send(member, work(0, chunks)));
    if (has_it && rank != root && member == root) given.push_back(recv(root, work(0, chunks)));
  }
  for (int other = 0; !has_it && other < ranks; ++other) {
    const int peer = lanes.groups[group][static_cast<std::size_t>(other)];
    const auto part = [&](int of) {
      const int first = lanes.first(of, ranks);
      return work(static_cast<std::uint32_t>(first),
                  static_cast<std::uint32_t>(lanes.first(of + 1, ranks) - first));
    };
    if (other == place) continue;
    if (part(other).chunks > 0) shared.push_back(recv(peer, part(other)));
    if (part(place).chunks > 0) shared.push_back(send(peer, part(place)));
  }
  before.rounds = std::vector<Round>{given};
  after.rounds = std::vector<Round>{shared};
  Schedule crossed = then(std::move(before), std::move(across), Kind::kBcast);
  crossed = then(std::move(crossed), std::move(after), Kind::kBcast);
  crossed.root = root;
  return crossed;
}

}  // namespace gradred
