#include "simulate/fold.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "schedule/replay.h"

namespace gradred {
namespace {

struct Symmetric {
  Kind collective;
  std::string_view name;
  bool powers_of_two_alone;
};

constexpr std::array kSymmetric = {
    Symmetric{Kind::kAllreduce, "ring", false},
    Symmetric{Kind::kAllreduce, "direct", false},
    Symmetric{Kind::kAllreduce, "recursive_doubling", true},
    Symmetric{Kind::kAllreduce, "rabenseifner", true},
    Symmetric{Kind::kAllreduce, "swing", true},
    Symmetric{Kind::kReduceScatterBlock, "ring", false},
    Symmetric{Kind::kReduceScatterBlock, "direct", false},
    Symmetric{Kind::kReduceScatterBlock, "recursive_halving", true},
    Symmetric{Kind::kAllgather, "ring", false},
    Symmetric{Kind::kAllgather, "direct", false},
    Symmetric{Kind::kAllgather, "recursive_doubling", true},
};

std::uint32_t chunks_of(const Step& step) {
  return (reads_source(step.kind) ? step.source : step.target).chunks;
}

bool are_alike(const Round& one, const Round& other, std::pair<std::size_t, std::size_t> ranks,
               std::size_t period, const Network& network) {
  return std::ranges::equal(one, other, [&](const Step& a, const Step& b) {
    if (a.kind != b.kind || chunks_of(a) != chunks_of(b)) return false;
    if (!is_message(a.kind)) return true;
    const auto peer = static_cast<std::size_t>(a.peer),
               other_peer = static_cast<std::size_t>(b.peer);
    return peer % period == other_peer % period &&
           network.meet(ranks.first, peer) == network.meet(ranks.second, other_peer);
  });
}

// The peers of a round's sends or receives, by their number modulo the period.
std::vector<std::pair<std::size_t, int>> peers_of(const Round& round, StepKind kind,
                                                  std::size_t period) {
  std::vector<std::pair<std::size_t, int>> found;
  for (const Step& step : round) {
    if (step.kind != kind) continue;
    found.emplace_back(static_cast<std::size_t>(step.peer) % period, step.peer);
  }
  std::ranges::sort(found);
  return found;
}

bool is_paired_in_one_way(const std::vector<std::pair<std::size_t, int>>& peers) {
  const auto two = [](const auto& a, const auto& b) {
    return a.first == b.first && a.second != b.second;
  };
  return std::ranges::adjacent_find(peers, two) == peers.end();
}

// Whether, in each round, the ranks `rank` and `peer` modulo the period send each other as many
// messages as they receive, so that pairs of ranks do not mix messages of different rounds.
bool is_in_step(const std::vector<Round>& rounds, std::size_t count, std::size_t period) {
  std::vector<int> balance(period * period);
  for (std::size_t rank = 0; rank < count; ++rank) {
    for (const Step& step : rounds[rank]) {
      if (!is_message(step.kind)) continue;
      const std::size_t peer = static_cast<std::size_t>(step.peer) % period;
      step.kind == StepKind::kSend ? ++balance[rank * period + peer]
                                   : --balance[peer * period + rank];
    }
  }
  return std::ranges::all_of(balance, [](int number) { return number == 0; });
}

}  // namespace

// The part inside groups depends on the place in the group alone.
bool is_symmetric(Kind collective, std::string_view name, const Parameters& parameters,
                  std::size_t size, std::size_t period) {
  if (period == 0 || size % period != 0 || parameters.wire != Wire::kNone) return false;
  if (collective == Kind::kAllreduce && name == "hierarchical") {
    const auto local = static_cast<std::size_t>(std::max(parameters.local, 0));
    return local > 0 && parameters.groups.empty() && period % local == 0 &&
           is_symmetric(collective, parameters.across, parameters, size / local, period / local);
  }
  return std::ranges::any_of(kSymmetric, [&](const Symmetric& row) {
    return row.collective == collective && row.name == name &&
           (!row.powers_of_two_alone || std::has_single_bit(size));
  });
}

bool is_alike(const std::function<Schedule(std::size_t rank)>& schedule_of, std::size_t size,
              std::size_t period, const Network& network) {
  std::vector<std::vector<Round>> first(period);
  std::size_t rounds = 0;
  for (std::size_t rank = 0; rank < period; ++rank) {
    for (Round round : schedule_of(rank).rounds) first[rank].push_back(std::move(round));
    rounds = std::max(rounds, first[rank].size());
  }
  std::vector<Round> together(period);
  for (std::size_t number = 0; number < rounds; ++number) {
    for (std::size_t rank = 0; rank < period; ++rank) {
      together[rank] = number < first[rank].size() ? first[rank][number] : Round{};
      for (const StepKind kind : {StepKind::kSend, StepKind::kRecv}) {
        if (!is_paired_in_one_way(peers_of(together[rank], kind, period))) return false;
      }
    }
    if (!is_in_step(together, period, period)) return false;
  }
  for (std::size_t rank = period; rank < size; ++rank) {
    const Schedule schedule = schedule_of(rank);
    const std::vector<Round>& wanted = first[rank % period];
    if (schedule.rounds.size() != wanted.size()) return false;
    bool same = true;
    Replay({&schedule, 1}).in_step([&](std::size_t, std::size_t number, const Round& steps) {
      same = same && are_alike(wanted[number], steps, {rank % period, rank}, period, network);
    });
    if (!same) return false;
  }
  return true;
}

}  // namespace gradred
