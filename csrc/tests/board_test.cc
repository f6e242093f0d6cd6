// The table of names and the log that ranks share. The ranks are threads or processes.
#include "named/board.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "boards.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

// Compares a hash of each rank's log over all ranks.
std::uint64_t all_saw_the_same(BoardBootstrap& bootstrap, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(bootstrap.size()));
  bootstrap.allgather(&mine, sizeof mine, all.data());
  for (const std::uint64_t one : all) expect(one == all.front(), "the logs differ");
  return mine;
}

// Some counts are so large that the operation goes chunk by chunk.
std::size_t count_of(int name) {
  return static_cast<std::size_t>(name % 9 == 8 ? 4'000'000 + name : name + 1);
}

// Each rank submits in its own order and with its own priorities. The names repeat.
void submits_in_any_order(const Shared& memory, BoardBootstrap& bootstrap,
                          std::uint64_t most_fused) {
  named::Board board = board_of(memory, bootstrap, most_fused);
  bootstrap.barrier();
  constexpr int kNames = 60, kTurns = 20;
  std::mt19937 random(static_cast<unsigned>(bootstrap.rank()));
  std::uint64_t seen = 1;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<int> order(kNames);
    for (int i = 0; i < kNames; ++i) order[static_cast<std::size_t>(i)] = i;
    std::ranges::shuffle(order, random);
    std::map<named::Board::Place, int> mine;
    std::map<int, std::uint32_t> chunks;
    int taken = 0;
    const auto take = [&](bool wants_work) {
      for (const auto& entry : board.take(wants_work, wants_work)) {
        const auto found = mine.find(entry.place);
        expect(found != mine.end(), "an entry that this rank has not submitted");
        expect(entry.problem.empty(), entry.problem);
        expect(entry.submission == nullptr, "this rank has its array");
        expect(most_fused > 0 || !entry.joins, "a batch where there are none");
        expect(entry.chunk == chunks[found->second]++, "chunks come one after the other");
        seen = (seen * 31 + static_cast<std::uint64_t>(found->second)) * 2 + (entry.joins ? 1 : 0);
        seen = seen * 31 + entry.chunk;
        if (!entry.is_last_chunk) continue;
        mine.erase(found);
        ++taken;
      }
    };
    for (const int name : order) {
      const int priority = static_cast<int>(random() % 5);
      const auto place =
          board.arrive("name" + std::to_string(name), sum_of(count_of(name), priority));
      expect(place.has_value(), "there is room");
      mine.emplace(*place, name);
      if (random() % 4 == 0) take(random() % 2 == 0);
    }
    while (taken < kNames) {
      take(true);
      if (taken < kNames && !board.any()) Sleep::until(board.news(), Sleep::kForever);
    }
  }
  all_saw_the_same(bootstrap, seen);
}

// Some names repeat, at times with another array. There are so many new names that all slots are
// reassigned repeatedly. Meanwhile ranks submit repeated names through their lanes, which are the
// ranks' lists of slots without a lock.
void slots_change_while_ranks_come(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  constexpr int kOld = 20, kNew = 20, kTurns = 3 * named::Board::kSlots / kNew;
  std::mt19937 random(static_cast<unsigned>(bootstrap.rank()));
  std::vector<int> order(kOld + kNew);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  for (int turn = 0; turn < kTurns; ++turn) {
    std::ranges::shuffle(order, random);
    std::map<named::Board::Place, int> mine;
    const auto take = [&] {
      for (const auto& entry : board.take(true, true)) {
        expect(entry.problem.empty(), entry.problem);
        expect(mine.erase(entry.place) == 1, "an entry that this rank has not submitted");
      }
    };
    for (const int i : order) {
      const bool is_old = i < kOld;
      const std::string name =
          is_old ? "old" + std::to_string(i) : "new" + std::to_string(turn * kNew + i);
      const int times = is_old ? turn / (2 + i) : 0;  // repetitions with the same array
      std::optional<named::Board::Place> place;
      while (!(place = board.arrive(name, sum_of(static_cast<std::size_t>(1 + times))))) take();
      expect(mine.emplace(*place, i).second, "a slot has one name");
      if (random() % 8 == 0) take();
    }
    while (!mine.empty()) {
      take();
      if (!mine.empty() && !board.any()) Sleep::until(board.news(), Sleep::kForever);
    }
  }
}

// Names that come once take turns in the first slots, but not in those of names that come again.
void new_names_use_few_slots(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  const auto place_of = [&](const std::string& name) {
    const auto place = board.arrive(name, sum_of(1));
    expect(place.has_value(), "there is room");
    bootstrap.barrier();
    expect(board.take().size() == 1, "all have submitted it");
    bootstrap.barrier();
    return *place;
  };
  bootstrap.barrier();
  named::Board::Place last = 0;
  const named::Board::Place again = place_of("again");
  expect(place_of("again") == again, "a name keeps its slot");
  for (int i = 0; i < 100; ++i) {
    last = std::max(last, place_of("new" + std::to_string(i)));
    if (i % 10 == 0) expect(place_of("again") == again, "a name that comes again keeps its slot");
  }
  expect(last < 3, "slots are used again at once");
}

// Ranks submit at the same time, with equal or different arrays. Some use their lanes while another
// rank assigns other arrays to the slot.
void differences_are_seen_by_all(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  const auto ranks = static_cast<unsigned>(bootstrap.size());
  std::mt19937 random(1);  // the same on all ranks
  for (int turn = 0; turn < 1000; ++turn) {
    std::vector<std::size_t> counts(ranks);
    for (std::size_t& count : counts) count = 1 + random() % 2;
    const std::size_t mine = counts[static_cast<unsigned>(bootstrap.rank())];
    const bool agree = std::ranges::count(counts, mine) == bootstrap.size();
    const auto first = board.arrive("first", sum_of(1));  // the next name goes through the lane
    std::optional<named::Board::Place> place;
    while (!(place = board.arrive(
                 "one", sum_of(mine)))) {  // other ranks may still read the previous array
      std::this_thread::yield();
    }
    std::map<named::Board::Place, bool> agreed;
    while (agreed.size() < 2) {
      const auto entries = board.take(true, turn % 2 == 0);
      for (const auto& entry : entries) agreed[entry.place] = entry.problem.empty();
      if (!entries.empty()) continue;
      if (board.is_watching()) Sleep::until(board.news(), Sleep::kForever);
      while (!board.any()) std::this_thread::yield();
    }
    expect(agreed.at(first.value()), "the first, turn " + std::to_string(turn));
    expect(agreed.at(*place) == agree, "turn " + std::to_string(turn));
    if (random() % 4 == 0) bootstrap.barrier();
  }
}

void the_most_urgent_goes_first_between_chunks(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  std::map<named::Board::Place, std::uint64_t> counts;
  const auto arrive = [&](const std::string& name, const Submission& what) {
    counts[board.arrive(name, what).value()] = what.counts[0];
  };
  const auto counts_of = [&](const std::vector<named::Board::Entry>& entries) {
    std::vector<std::uint64_t> found;
    for (const auto& entry : entries) found.push_back(counts.at(entry.place));
    return found;
  };
  constexpr std::size_t kLarge = 3 * Submission::kChunkBytes / 4;  // 3 chunks
  using Counts = std::vector<std::uint64_t>;
  bootstrap.barrier();
  arrive("large", sum_of(kLarge));
  bootstrap.barrier();
  arrive("urgent", sum_of(1, 1));
  bootstrap.barrier();
  arrive("large again", sum_of(kLarge));
  bootstrap.barrier();
  if (bootstrap.rank() == 0) {
    const auto entries = board.take();
    expect(counts_of(entries) == Counts{1, kLarge}, "whole: nothing had been more urgent");
    expect(counts_of(board.take()) == Counts{kLarge}, "the first chunk: something has been since");
    board.take();
    expect(counts_of(board.take()) == Counts{kLarge}, "the last chunk");
  }
  bootstrap.barrier();
  if (bootstrap.rank() == 1) expect(board.take().size() == 5, "what rank 0 has decided");
  bootstrap.barrier();
  arrive("large", sum_of(kLarge));
  bootstrap.barrier();
  if (bootstrap.rank() == 0) {
    expect(board.take(false).empty(), "nobody has decided");
    expect(counts_of(board.take()) == Counts{kLarge}, "the first chunk");
    expect(board.take(false).empty() && board.any() && !board.any(false), "the rest is left");
  }
  bootstrap.barrier();
  arrive("of no hurry", sum_of(3, -1));
  arrive("urgent",
         sum_of(1, bootstrap.rank() == 0 ? -2 : 2));  // the highest priority of all ranks applies
  arrive("more urgent", sum_of(2, 3));
  bootstrap.barrier();
  if (bootstrap.rank() == 0) {
    const auto entries = board.take();
    expect(counts_of(entries) == Counts{2, 1, kLarge} && entries[2].chunk == 1, "by priority");
  }
  bootstrap.barrier();
  if (bootstrap.rank() == 1) {
    expect(counts_of(board.take()) == Counts{kLarge, 2, 1, kLarge}, "what rank 0 has decided");
    const auto entries = board.take();
    expect(counts_of(entries) == Counts{kLarge} && entries[0].is_last_chunk, "its last chunk");
  }
  bootstrap.barrier();
  if (bootstrap.rank() == 0) {
    expect(counts_of(board.take(false)) == Counts{kLarge}, "what rank 1 has decided");
  }
  bootstrap.barrier();
  expect(counts_of(board.take()) == Counts{3} || bootstrap.rank() == 1, "the last one");
  bootstrap.barrier();
  board.take();
  expect(!board.any(), "that was all");
}

// One rank alone uses memory of another operation in flight for "third".
void what_a_rank_submits_as_alone_is_in_no_batch(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap, 4000);
  const auto joins_of = [&](bool alone) {
    for (const std::string name : {"first", "second", "third", "fourth", "fifth"}) {
      Submission what = sum_of(3);
      if (alone && name == "third" && bootstrap.rank() == 1) what.form = NamedForm::kAlone;
      expect(board.arrive(name, what).has_value(), "there is room");
      bootstrap.barrier();  // all ranks submit them in one order
    }
    std::vector<bool> joins;
    for (const auto& entry : board.take()) joins.push_back(entry.joins);
    bootstrap.barrier();
    return joins;
  };
  for (int turn = 0; turn < 3; ++turn) {  // later turns come through the lanes
    expect(joins_of(false) == std::vector{false, true, true, true, true}, "one batch");
    expect(joins_of(true) == std::vector{false, true, false, false, true}, "the third is alone");
  }
}

void the_end_of_a_join_comes_behind_all_chunks(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  if (bootstrap.rank() == 0) board.join();
  bootstrap.barrier();
  if (bootstrap.rank() == 1) {
    board.arrive("urgent", sum_of(1, 1));
    board.arrive("large", sum_of(2 * Submission::kChunkBytes / 4));
    board.join();
  }
  bootstrap.barrier();
  std::vector<named::Board::Entry> entries;
  while (entries.size() < 4) {
    for (auto& entry : board.take()) entries.push_back(std::move(entry));
  }
  expect(entries[1].chunk == 0 && entries[2].chunk == 1, "two chunks");
  expect(entries[3].is_join(), "then the join");
  for (const auto& entry : entries) {  // also for the rank that takes it when all have joined
    expect(entry.submission != nullptr, "what rank 0 has no array of");
  }
}

void chunks_are_all_of_it_and_alike(BoardBootstrap&) {
  for (const std::uint64_t count : {1ULL, 1'000'000ULL, 1'572'863ULL, 1'572'864ULL, 5'000'001ULL,
                                    67'108'864ULL, 4'000'000'003ULL}) {
    Submission what = sum_of(count);
    expect(what.chunks() == 1, "whole, unless it is said");
    what.form = NamedForm::kInChunks;
    std::uint64_t end = 0, bytes = 0;
    for (std::uint32_t chunk = 0; chunk < what.chunks(); ++chunk) {
      const auto range = what.chunk(chunk);
      expect(range.begin == end && range.end > range.begin, "behind the one before");
      expect(what.bytes_of(chunk) <= Submission::kChunkBytes * 3 / 2, "no chunk is too large");
      end = range.end;
      bytes += what.bytes_of(chunk);
    }
    expect(end == count && bytes == what.bytes, "all of it");
  }
}

void runs_out_of_room(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  const auto name = [](std::uint32_t i) { return "a" + std::to_string(i); };
  if (bootstrap.rank() == 0) {
    for (std::uint32_t i = 0; i < named::Board::kSlots; ++i) {
      expect(board.arrive(name(i), sum_of(1)).has_value(), "room for each slot");
    }
    expect(!board.arrive("one more", sum_of(1)), "no room beyond");
  }
  bootstrap.barrier();
  if (bootstrap.rank() != 0) {
    for (std::uint32_t i = named::Board::kSlots; i-- > 0;) {
      expect(board.arrive(name(i), sum_of(1)).has_value(), "a name that has a slot");
    }
  }
  bootstrap.barrier();
  expect(board.take().size() == named::Board::kSlots, "all were agreed on");
  bootstrap.barrier();
  expect(board.arrive("one more", sum_of(1)).has_value(), "the slots are free again");
  bootstrap.barrier();
  expect(board.take().size() == 1, "the last one");
}

void joined_ranks_fall_behind(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  constexpr std::uint32_t kMore = named::Board::kSlots + 100;
  if (bootstrap.rank() == 0) board.join();
  bootstrap.barrier();
  std::size_t taken = 0;
  if (bootstrap.rank() == 1) {
    for (std::uint32_t i = 0; i < kMore; ++i) {
      board.arrive("b" + std::to_string(i % 50), sum_of(1));
      const std::size_t now = board.take().size();
      taken += now;
      if (now == 0) break;  // it waits for the other rank, which takes nothing
    }
    expect(taken == named::Board::kSlots, "the log is full");
    board.join();
  }
  bootstrap.barrier();
  if (bootstrap.rank() == 0) taken += board.take().size();
  bootstrap.barrier();
  while (board.any()) taken += board.take().size();
  bootstrap.barrier();
  while (board.any()) taken += board.take().size();
  expect(taken > named::Board::kSlots, "the join came behind what had waited");
}

void who_joins_after_a_name_counts_once(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  Submission largest = sum_of(3);
  largest.op = Op::kMax;
  if (bootstrap.rank() == 0) {
    board.arrive("a", largest);
    board.join();
  }
  bootstrap.barrier();
  if (bootstrap.rank() == 1) {
    board.arrive("a", largest);
    board.arrive("b", largest);
  }
  bootstrap.barrier();
  expect(!board.any(), "rank 2 has not come, neither with a nor with b");
  bootstrap.barrier();
  if (bootstrap.rank() == 2) {
    board.arrive("a", largest);
    board.arrive("b", largest);
  }
  bootstrap.barrier();
  if (bootstrap.rank() != 0) board.join();
  bootstrap.barrier();
  auto entries = board.take();
  for (auto& later : board.take()) entries.push_back(std::move(later));
  expect(entries.size() == 3 && entries[2].is_join(), "a, b, the join");
  expect(entries[0].problem.empty(), "all have come with a");
  expect(!entries[1].problem.empty(), "rank 0 has none for b, and zeros make no maximum");
}

// Ranks whose arrays are alike, and belong to trees of other structures.
void structures_are_compared(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  const auto problem_of = [&](const std::string& name, const std::string& structure) {
    bootstrap.barrier();
    board.arrive(name, structure.empty() ? sum_of(1) : leaf_of(structure),
                 {.structure = structure});
    bootstrap.barrier();
    const auto entries = board.take();
    expect(entries.size() == 1, "all have come");
    bootstrap.barrier();
    return entries[0].problem;
  };
  const bool is_first = bootstrap.rank() == 0;
  const auto says = [](const std::string& problem, const std::string& text) {
    expect(problem.find(text) != std::string::npos, problem + " lacks: " + text);
  };
  for (int turn = 0; turn < 2; ++turn) {
    expect(problem_of("tree", "{'a': *}").empty(), "trees of one structure");
    const std::string problem = problem_of("tree", is_first ? "{'a': *}" : "{'b': *}");
    says(problem, "{'a': *}");
    says(problem, "{'b': *}");
    says(problem_of("tree", is_first ? "" : "(*,)"), "rank 0 has arrays without a tree");
  }
  std::string long_one;
  for (int i = 0; i < 100; ++i) long_one += "'layer " + std::to_string(i) + "': *, ";
  std::string other = long_one;
  other.replace(other.find("layer 70"), 8, "lever 70");
  const std::string problem = problem_of("long", is_first ? long_one : other);
  says(problem, "'layer 70'");
  says(problem, "'lever 70'");
  const auto nested = [](const std::string& leaf) {
    std::string made = "({'head': *}, {'layers': [";
    for (int i = 0; i < 300; ++i) made += "Dense(kernel=*, bias=*), ";
    return made + "Dense(kernel=*, scale={'it\\'s, (': " + leaf + "})]})";
  };
  const std::string deep = problem_of("deep", nested(is_first ? "*" : "None"));
  says(deep, "structures at [1]['layers'][300].scale: rank");
  says(deep, "has 'it\\'s, (': *");
  says(deep, "has 'it\\'s, (': None");
  // A text is lost when so many other slots have got one since.
  expect(problem_of("lost", "[*]").empty(), "trees of one structure");
  for (int i = 0; i < 300; ++i) {
    expect(problem_of("other " + std::to_string(i), "{}").empty(), "trees of one structure");
  }
  const std::string lost = problem_of("lost", is_first ? "[*]" : "(*,)");
  expect(!lost.empty(), "they differ all the same");
}

void takes_back(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  if (bootstrap.rank() == 0) {
    const auto place = board.arrive("back", sum_of(3));
    expect(board.missing(*place) == std::vector<std::string>{"rank 1"}, "rank 1 is missing");
    expect(board.retract(*place), "nobody else has come");
    expect(!board.retract(*place), "once");
  }
  bootstrap.barrier();
  if (bootstrap.rank() == 1) {
    const auto place = board.arrive("back", sum_of(4));
    expect(board.missing(*place) == std::vector<std::string>{"rank 0"}, "rank 0 is missing");
  }
  bootstrap.barrier();
  if (bootstrap.rank() == 0) board.arrive("back", sum_of(4));
  bootstrap.barrier();
  const auto entries = board.take();
  expect(entries.size() == 1 && entries[0].problem.empty(), "what was taken back counts no more");
  if (bootstrap.rank() == 0) board.leave("rank 0 has left");
  bootstrap.barrier();
  expect(board.any_left() && board.why_left() == "rank 0 has left", "all know");
  try {
    board.arrive("late", sum_of(1));
    throw Failed("a name was taken after the end");
  } catch (const Error&) {
  }
}

void what_all_have_submitted_outlives_who_leaves(const Shared& memory, BoardBootstrap& bootstrap) {
  named::Board board = board_of(memory, bootstrap);
  bootstrap.barrier();
  for (int turn = 0; turn < 2; ++turn) {  // afterwards all but the first use the lanes
    for (const char* const name : {"first", "a", "b"}) board.arrive(name, sum_of(1));
    bootstrap.barrier();
    expect(board.take().size() == 3, "all have come");
    bootstrap.barrier();
  }
  for (const char* const name : {"first", "a"}) board.arrive(name, sum_of(1));
  if (bootstrap.rank() == 0) board.arrive("b", sum_of(1));
  bootstrap.barrier();
  if (bootstrap.rank() == 1) board.leave("rank 1 has left");
  bootstrap.barrier();
  expect(board.any() && board.take().size() == 2, "the first and a");
  expect(!board.any(), "b will never be");
}

int run_all(const std::string& part) {
  Report report(part);
  const auto on = [&](int size, const std::string& name, const auto& body) {
    for (const Ranks kind : {Ranks::kThreads, Ranks::kProcesses}) {
      const Shared memory(named::Board::bytes(static_cast<std::size_t>(size)));
      on_ranks(report, kind)(size, name, [&](BoardBootstrap& ranks) { body(memory, ranks); });
    }
  };
  for (const int size : {1, 2, 3, 5}) {
    for (const std::uint64_t fused : {0, 100, 4000}) {
      on(size, "submits_in_any_order, batches of " + std::to_string(fused),
         [&](const Shared& memory, BoardBootstrap& ranks) {
           submits_in_any_order(memory, ranks, fused);
         });
    }
  }
  on_ranks(report, Ranks::kThreads)(1, "chunks_are_all_of_it_and_alike",
                                    chunks_are_all_of_it_and_alike);
  for (const int size : {2, 3}) {
    on(size, "slots_change_while_ranks_come", slots_change_while_ranks_come);
    on(size, "new_names_use_few_slots", new_names_use_few_slots);
    on(size, "differences_are_seen_by_all", differences_are_seen_by_all);
  }
  on(2, "the_most_urgent_goes_first_between_chunks", the_most_urgent_goes_first_between_chunks);
  on(2, "what_a_rank_submits_as_alone_is_in_no_batch", what_a_rank_submits_as_alone_is_in_no_batch);
  on(2, "the_end_of_a_join_comes_behind_all_chunks", the_end_of_a_join_comes_behind_all_chunks);
  on(2, "runs_out_of_room", runs_out_of_room);
  on(2, "joined_ranks_fall_behind", joined_ranks_fall_behind);
  on(3, "who_joins_after_a_name_counts_once", who_joins_after_a_name_counts_once);
  on(2, "structures_are_compared", structures_are_compared);
  on(2, "takes_back", takes_back);
  on(2, "what_all_have_submitted_outlives_who_leaves", what_all_have_submitted_outlives_who_leaves);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: board_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
