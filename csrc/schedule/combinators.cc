#include "schedule/combinators.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.h"
#include "schedule/partition.h"

namespace gradred {
namespace {

// What the rank `extra` of a block sends to the block's first rank, and what it gets back.
struct Exchange {
  Span given, returned;
  bool reduced;  // `given` is reduced into what the first rank has
};

Exchange exchange(const Schedule& schedule, int extra) {
  const KindInfo& kind = info_of(schedule.collective);
  check(needs_all_ranks(schedule.collective), "schedules that serve all ranks alike are folded");
  const auto span = [&](Part part) {
    const auto own = static_cast<std::uint32_t>(extra);
    return part == Part::kOwnBlock ? work(own) : work(0, schedule.chunks);
  };
  return {span(kind.input), span(kind.result), reduces(schedule.collective)};
}

}  // namespace

Schedule blank(Kind collective, int rank, int size, int chunks, int scratch_slots) {
  Schedule schedule;
  schedule.collective = collective;
  schedule.rank = rank;
  schedule.size = size;
  schedule.chunks = static_cast<std::uint32_t>(chunks);
  schedule.scratch_slots = static_cast<std::uint32_t>(scratch_slots);
  return schedule;
}

Schedule then(Schedule first, Schedule second, Kind collective) {
  check(first.rank == second.rank && first.size == second.size && first.chunks == second.chunks,
        "schedules of different ranks, sizes or chunks in a row");
  first.collective = collective;
  first.scratch_slots = std::max(first.scratch_slots, second.scratch_slots);
  if (second.coded_slots > 0) first.wire = second.wire;
  first.coded_slots = std::max(first.coded_slots, second.coded_slots);
  first.rounds = joined(std::move(first.rounds), std::move(second.rounds));
  return first;
}

Schedule embed(Schedule schedule, const std::vector<int>& members, int size) {
  const auto member = [=](int rank) { return members.at(static_cast<std::size_t>(rank)); };
  schedule.rounds = changed(std::move(schedule.rounds), [=](Step& step) {
    if (is_message(step.kind)) step.peer = member(step.peer);
  });
  schedule.rank = member(schedule.rank);
  schedule.root = has_root(schedule.collective) ? member(schedule.root) : 0;
  schedule.size = size;
  return schedule;
}

Schedule widen(Schedule schedule, const std::vector<int>& starts, int chunks) {
  check(starts.size() == schedule.chunks + 1, "widen needs one start per chunk and the end");
  int widest = 0;
  for (std::size_t i = 0; i < schedule.chunks; ++i) {
    widest = std::max(widest, starts[i + 1] - starts[i]);
  }
  // A run lies dense, so this many slots per chunk are enough.
  const auto slots = static_cast<std::uint32_t>(widest);
  const auto widened = [=](Span& span) {
    const int first = starts[span.first], end = starts[span.first + span.chunks];
    span.first = static_cast<std::uint32_t>(first);
    span.chunks = static_cast<std::uint32_t>(end - first);
    span.slot *= slots;
  };
  schedule.rounds = changed(std::move(schedule.rounds), [=](Step& step) {
    if (reads_source(step.kind)) widened(step.source);
    if (reads_operand(step.kind)) widened(step.operand);
    if (writes_target(step.kind)) widened(step.target);
  });
  schedule.chunks = static_cast<std::uint32_t>(chunks);
  schedule.scratch_slots *= slots;
  schedule.coded_slots *= slots;
  return schedule;
}

std::vector<int> evenly(int first, int stride, int count) {
  std::vector<int> numbers;
  for (int i = 0; i <= count; ++i) numbers.push_back(first + i * stride);
  return numbers;
}

namespace {

// Like folded(), for blocks that begin at the given ranks; the last number is the end of the last
// block.
Schedule folded_blocks(int rank, const std::vector<int>& firsts, const Generator& generator) {
  const int size = firsts.back(), mains = static_cast<int>(firsts.size()) - 1;
  if (mains == size) return generator(rank, size);
  const auto next = std::upper_bound(firsts.begin(), firsts.end(), rank);
  const int first = *(next - 1), end = *next;
  const int block = static_cast<int>(next - firsts.begin()) - 1;

  Schedule schedule = embed(generator(block, mains), firsts, size);
  schedule.rank = rank;
  if (has_blocks(schedule.collective)) schedule = widen(schedule, firsts, size);
  if (rank != first) schedule.rounds = std::vector<Round>(schedule.rounds.size());
  Round before, reductions, after;
  for (int extra = first + 1; extra < end; ++extra) {
    const auto [given, returned, reduced] = exchange(schedule, extra);
    const auto slot = static_cast<std::uint32_t>(extra - first - 1) * given.chunks;
    if (rank == extra) {
      before.push_back(send(first, given));
      after.push_back(recv(first, returned));
    } else if (rank == first) {
      const Span inbox = reduced ? scratch(slot, given.first, given.chunks) : given;
      before.push_back(recv(extra, inbox));
      if (reduced) reductions.push_back(reduce(inbox, given));
      if (reduced) schedule.scratch_slots = std::max(schedule.scratch_slots, slot + given.chunks);
      after.push_back(send(extra, returned));
    }
  }
  before.insert(before.end(), reductions.begin(), reductions.end());
  schedule.rounds = joined(joined({{before}}, std::move(schedule.rounds)), {{after}});
  return schedule;
}

}  // namespace

Schedule folded(int rank, int size, int mains, const Generator& generator) {
  const Partition blocks{static_cast<std::size_t>(size), static_cast<std::size_t>(mains)};
  std::vector<int> firsts;
  for (std::size_t i = 0; i <= blocks.chunks; ++i) {
    firsts.push_back(static_cast<int>(blocks.begin(i)));
  }
  return folded_blocks(rank, firsts, generator);
}

// ---- groups -------------------------------------------------------------------------------------

Lanes Lanes::of(const Topology& topology, bool leaders) {
  Lanes lanes;
  lanes.groups.resize(static_cast<std::size_t>(topology.hosts));
  for (std::size_t rank = 0; rank < topology.host_of.size(); ++rank) {
    auto& group = lanes.groups[static_cast<std::size_t>(topology.host_of[rank])];
    group.push_back(static_cast<int>(rank));
    if (!leaders) lanes.count = std::max(lanes.count, static_cast<int>(group.size()));
  }
  lanes.spots.resize(topology.host_of.size());
  for (std::size_t group = 0; group < lanes.groups.size(); ++group) {
    const auto ranks = static_cast<int>(lanes.groups[group].size());
    for (int place = 0; place < ranks; ++place) {
      const int rank = lanes.groups[group][static_cast<std::size_t>(place)];
      lanes.spots[static_cast<std::size_t>(rank)] = {group, place, ranks};
    }
  }
  return lanes;
}

namespace {

// Runs both schedules at once; they have the same rank, chunks and number of rounds.
Schedule beside(Schedule first, Schedule second) {
  check(first.rounds.size() == second.rounds.size(), "schedules side by side are of one length");
  const std::uint32_t shift = first.scratch_slots, coded_shift = first.coded_slots;
  const auto shifted = [=](Span& span) {
    if (span.buffer == BufferId::kScratch) span.slot += shift;
    if (span.buffer == BufferId::kCoded) span.slot += coded_shift;
  };
  Rounds moved = changed(std::move(second.rounds), [=](Step& step) {
    shifted(step.source), shifted(step.target), shifted(step.operand);
  });
  first.scratch_slots += second.scratch_slots;
  first.coded_slots += second.coded_slots;
  first.rounds = Rounds(static_cast<int>(first.rounds.size()),
                        [one = std::move(first.rounds), other = std::move(moved)](int number) {
                          Round round = one[static_cast<std::size_t>(number)];
                          const Round more = other[static_cast<std::size_t>(number)];
                          round.insert(round.end(), more.begin(), more.end());
                          return round;
                        });
  return first;
}

// Treats the groups as consecutive blocks, whose first ranks reduce for the others.
Schedule by_leaders(int rank, const Lanes& lanes, const Generator& across) {
  std::vector<int> order, firsts;
  for (const auto& group : lanes.groups) {
    firsts.push_back(static_cast<int>(order.size()));
    order.insert(order.end(), group.begin(), group.end());
  }
  const int size = static_cast<int>(order.size());
  firsts.push_back(size);
  const auto place = static_cast<int>(std::ranges::find(order, rank) - order.begin());
  return embed(folded_blocks(place, firsts, across), order, size);
}

}  // namespace

Schedule across_groups(int rank, const Lanes& lanes, const Generator& across) {
  const auto [group, place, ranks] = lanes.spot_of(rank);
  const Schedule one = across(static_cast<int>(group), static_cast<int>(lanes.groups.size()));
  const int slice = static_cast<int>(one.chunks), chunks = lanes.count * slice;
  std::optional<Schedule> all;
  for (int lane = lanes.first(place, ranks); lane < lanes.first(place + 1, ranks); ++lane) {
    std::vector<int> partners;
    for (std::size_t other = 0; other < lanes.groups.size(); ++other) {
      partners.push_back(lanes.carrier(lane, other));
    }
    Schedule own =
        embed(widen(one, evenly(lane * slice, 1, slice), chunks), partners, lanes.size());
    all = all ? beside(std::move(*all), std::move(own)) : std::move(own);
  }
  return all ? *all : blank(one.collective, rank, lanes.size(), chunks);
}

Schedule hierarchical(int rank, const Lanes& lanes, const Levels& levels) {
  if (lanes.count == 1 && lanes.size() > 1) return by_leaders(rank, lanes, levels.across);
  Schedule across = across_groups(rank, lanes, levels.across);
  const auto [group, place, ranks] = lanes.spot_of(rank);
  const int chunks = static_cast<int>(across.chunks), slice = chunks / lanes.count;
  std::vector<int> starts;
  for (int other = 0; other <= ranks; ++other) starts.push_back(lanes.first(other, ranks) * slice);
  const auto inside = [&](const Generator& generator) {
    return embed(widen(generator(place, ranks), starts, chunks), lanes.groups[group], lanes.size());
  };
  Schedule scattered = then(inside(levels.reduce_scatter), std::move(across), Kind::kAllreduce);
  return then(std::move(scattered), inside(levels.allgather), Kind::kAllreduce);
}

}  // namespace gradred
