#include "schedule/combinators.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "schedule/partition.h"

namespace gradred {
namespace {

// What the extra rank `extra` of a block gives to the block's first rank, and gets back.
struct Exchange {
  Span given, returned;
  bool reduced;  // given is added to what the first rank has
};

Exchange exchange(const Schedule& schedule, int extra) {
  const Span all = work(0, schedule.chunks), own = work(static_cast<std::uint32_t>(extra));
  switch (schedule.collective) {
    case Collective::kReduceScatter:
      return {all, own, true};
    case Collective::kAllgather:
      return {own, all, false};
    case Collective::kAllreduce:
      return {all, all, true};
    case Collective::kBcast:
      break;
  }
  throw Error("internal error: broadcasts are not folded");
}

}  // namespace

Schedule blank(Collective collective, int rank, int size, int chunks, int scratch_slots) {
  Schedule schedule;
  schedule.collective = collective;
  schedule.rank = rank;
  schedule.size = size;
  schedule.chunks = static_cast<std::uint32_t>(chunks);
  schedule.scratch_slots = static_cast<std::uint32_t>(scratch_slots);
  return schedule;
}

Schedule then(Schedule first, Schedule second, Collective collective) {
  check(first.rank == second.rank && first.size == second.size && first.chunks == second.chunks,
        "schedules of different ranks, sizes or chunks in a row");
  first.collective = collective;
  first.scratch_slots = std::max(first.scratch_slots, second.scratch_slots);
  first.rounds = joined(std::move(first.rounds), std::move(second.rounds));
  return first;
}

Schedule embed(Schedule schedule, const std::vector<int>& members, int size) {
  const auto member = [=](int rank) { return members.at(static_cast<std::size_t>(rank)); };
  schedule.rounds = changed(std::move(schedule.rounds), [=](Step& step) {
    if (is_message(step.kind)) step.peer = member(step.peer);
  });
  schedule.rank = member(schedule.rank);
  schedule.root = schedule.collective == Collective::kBcast ? member(schedule.root) : 0;
  schedule.size = size;
  return schedule;
}

Schedule widen(Schedule schedule, const std::vector<int>& starts, int chunks) {
  check(starts.size() == schedule.chunks + 1, "widen needs one start per chunk and the end");
  int widest = 0;
  for (std::size_t i = 0; i < schedule.chunks; ++i) {
    widest = std::max(widest, starts[i + 1] - starts[i]);
  }
  const auto slots = static_cast<std::uint32_t>(widest);  // a run lies dense, so this is enough
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
  return schedule;
}

std::vector<int> evenly(int first, int stride, int count) {
  std::vector<int> numbers;
  for (int i = 0; i <= count; ++i) numbers.push_back(first + i * stride);
  return numbers;
}

Schedule folded(int rank, int size, int mains, const Generator& generator) {
  if (mains == size) return generator(rank, size);
  const Partition blocks{static_cast<std::size_t>(size), static_cast<std::size_t>(mains)};
  std::vector<int> firsts;
  for (std::size_t i = 0; i <= blocks.chunks; ++i) {
    firsts.push_back(static_cast<int>(blocks.begin(i)));
  }
  const auto next = std::upper_bound(firsts.begin(), firsts.end(), rank);
  const int first = *(next - 1), end = *next;
  const int block = static_cast<int>(next - firsts.begin()) - 1;

  Schedule schedule = embed(generator(block, mains), firsts, size);
  schedule.rank = rank;
  if (schedule.collective != Collective::kAllreduce) schedule = widen(schedule, firsts, size);
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

Schedule hierarchical(int rank, int size, int local, const Levels& levels) {
  const int groups = size / local, group = rank / local, place = rank % local;
  Schedule scatter = levels.reduce_scatter(place, local);
  Schedule across = levels.across(group, groups);
  Schedule gather = levels.allgather(place, local);

  const int slice = static_cast<int>(across.chunks), chunks = local * slice;
  const std::vector<int> neighbours = evenly(group * local, 1, local);
  const std::vector<int> partners = evenly(place, local, groups), slices = evenly(0, slice, local);
  scatter = embed(widen(std::move(scatter), slices, chunks), neighbours, size);
  across = embed(widen(std::move(across), evenly(place * slice, 1, slice), chunks), partners, size);
  gather = embed(widen(std::move(gather), slices, chunks), neighbours, size);
  return then(then(std::move(scatter), std::move(across), Collective::kAllreduce),
              std::move(gather), Collective::kAllreduce);
}

}  // namespace gradred
