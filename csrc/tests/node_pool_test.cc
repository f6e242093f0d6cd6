// Node groups that are made and freed in memory which their ranks share permanently.

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "node_calls.h"

namespace gradred::testing {

// Keeps a group's memory at its initial size: rank 0 does not try to extend slots and chunks.
struct NoMoreMemory {
  static void from_now_on(NodeGroup& group) { group.part().tried_ = true; }
};

namespace {

// Random numbers that are the same on all ranks.
using Draw = std::mt19937;

std::vector<std::size_t> some_of(int size, Draw& draw) {
  std::vector<std::size_t> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), std::size_t{0});
  std::shuffle(members.begin(), members.end(), draw);
  members.resize(2 + draw() % (members.size() - 1));
  return members;
}

// Makes a group of some ranks. Returns nullptr on the other ranks, and if the leader has no
// addresses left. Collective over all ranks of the pool.
std::unique_ptr<NodeGroup> make_part(BoardBootstrap& bootstrap, const NodeGroup& first,
                                     const std::vector<std::size_t>& members,
                                     const NodeOptions& options, std::size_t* where = nullptr) {
  const auto self = static_cast<std::size_t>(bootstrap.rank());
  std::size_t begin = 0;
  if (members.front() == self) {
    const PoolPart* part = NodeGroup::reserve(*first.pool(), members, options);
    if (part != nullptr) begin = part->lines;
  }
  std::vector<std::size_t> all(static_cast<std::size_t>(bootstrap.size()));
  bootstrap.allgather(&begin, sizeof begin, all.data());
  begin = all[members.front()];
  if (where != nullptr) *where = begin;
  const auto found = std::ranges::find(members, self);
  if (found == members.end() || begin == 0) return nullptr;
  return NodeGroup::join(first.pool(), begin, members,
                         static_cast<std::size_t>(found - members.begin()), {});
}

Call any_call(const NodeGroup& group, Draw& draw) {
  constexpr Kind kKinds[] = {Kind::kAllreduce, Kind::kAllreduce, Kind::kReduceScatterBlock,
                             Kind::kAllgather, Kind::kBcast};
  constexpr std::size_t kCounts[] = {1, 3, 12, 13, 900, 5000, 20011};
  return {.kind = kKinds[draw() % 5],
          .count = kCounts[draw() % 7],
          .in_place = draw() % 2 == 0,
          .root = static_cast<int>(draw() % static_cast<unsigned>(group.size()))};
}

// Each rank frees groups at its own times, and comes late to calls. Data of earlier groups in the
// same memory must not be taken for data of the peers.
void groups_come_and_go(BoardBootstrap& bootstrap) {
  const auto first = make_group(bootstrap, small_paths());
  Draw draw(7), own(static_cast<unsigned>(bootstrap.rank()));
  std::vector<std::unique_ptr<NodeGroup>> alive;
  for (unsigned turn = 0; turn < 80; ++turn) {
    auto made = make_part(bootstrap, *first, some_of(bootstrap.size(), draw), small_paths());
    Draw calls(turn);  // only the members draw from it
    if (made != nullptr) {
      for (auto left = calls() % 6; left > 0; --left) {
        if (own() % 16 == 0) usleep(300);
        run_call(*made, any_call(*made, calls), turn);
      }
      alive.push_back(std::move(made));
    }
    run_call(*first, {.count = 1 + turn % 3000}, turn);
    while (alive.size() > own() % 5) {
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(own() % alive.size()));
    }
  }
}

void a_part_is_used_again_when_all_ranks_have_left(BoardBootstrap& bootstrap) {
  const auto first = make_group(bootstrap, small_paths());
  std::vector<std::size_t> all(static_cast<std::size_t>(bootstrap.size()));
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::size_t at_first = 0, meanwhile = 0, again = 0;
  auto one = make_part(bootstrap, *first, all, small_paths(), &at_first);
  run_call(*one, {.count = 5000}, 1);
  if (bootstrap.rank() == 0) one.reset();
  bootstrap.barrier();
  auto two = make_part(bootstrap, *first, all, small_paths(), &meanwhile);
  expect(meanwhile != at_first, "a peer still uses it");
  one.reset();
  bootstrap.barrier();
  const auto three = make_part(bootstrap, *first, all, small_paths(), &again);
  expect(again == at_first, "nobody uses it any more");
  expect(three->part().is_whole(), "and all of it is memory");
  run_call(*two, {.count = 5000}, 2);
  run_call(*three, {.count = 5000}, 3);
}

// Peers may still read an operation of a rank when that rank writes the next one.
void operations_move_on_in_two_rings(BoardBootstrap& bootstrap) {
  const auto group = make_group(bootstrap, small_paths());
  SharedPart& part = group->part();
  const NodeOptions& options = part.options();
  const auto rank = static_cast<std::size_t>(group->rank());
  std::set<const std::byte*> begins;
  for (std::uint64_t operation = 1; operation < 300; ++operation) {
    const std::byte* const ring = part.ring(rank, operation);
    expect(part.slot(rank, operation) == ring, "at the start, unless it is placed");
    const std::size_t bytes = operation % 7 == 0 ? 8192 : 300 + operation % 5 * 900;
    part.place(operation, bytes, operation % 9 + 1);
    begins.insert(part.slot(rank, operation));
    for (std::size_t index = 0; index < 20; ++index) {
      const std::byte* const chunk = part.chunk(rank, operation, index);
      expect(chunk >= ring && chunk + bytes <= ring + options.ring_bytes, "in its ring");
      for (std::size_t other = index + 1; other < index + options.depth; ++other) {
        const std::byte* const next = part.chunk(rank, operation, other);
        expect(next + bytes <= chunk || chunk + bytes <= next, "the next ones are elsewhere");
      }
    }
  }
  expect(begins.size() > 60, "operations begin everywhere");
}

NodeOptions larger_than_beginnings() {
  NodeOptions options = small_paths();
  options.slot_bytes = 32 << 10;
  options.chunk_bytes = 32 << 10;
  options.piece_bytes = 16 << 10;
  options.one_shot_bytes = 128 << 10;
  options.exchange_bytes = 100'000;
  return options;
}

// Most communicators of a program carry few and short calls.
void short_calls_need_only_lines(BoardBootstrap& bootstrap) {
  const auto first = make_group(bootstrap, small_paths());
  std::vector<std::size_t> all(static_cast<std::size_t>(bootstrap.size()));
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<std::unique_ptr<NodeGroup>> kept;
  for (unsigned turn = 0; turn < 100; ++turn) {
    auto& group = *kept.emplace_back(make_part(bootstrap, *first, all, small_paths()));
    for (const std::size_t count : {1U, 12U, 13U, 256U}) {  // of 4 bytes
      run_call(group, {.count = count, .in_place = count % 2 == 0}, ++turn);
      expect(group.part().usable().chunk_bytes == 0, "up to 1 KiB fit into the lines");
    }
    run_call(group, {.count = 257}, ++turn);
    expect(group.part().usable().chunk_bytes > 0, "one byte more does not");
  }
}

// Whoever makes a group may know what its first operation, or each of them, needs.
void groups_for_known_calls_begin_with_slots_for_them(BoardBootstrap& bootstrap) {
  NodeOptions options;
  const auto first = make_group(bootstrap, options);
  std::vector<std::size_t> all(static_cast<std::size_t>(bootstrap.size()));
  std::iota(all.begin(), all.end(), std::size_t{0});
  const std::size_t ranks = all.size();
  std::vector<std::unique_ptr<NodeGroup>> kept;
  unsigned seed = 0;
  for (const std::size_t bytes : {2000U, 8192U}) {
    options.first_bytes = bytes;
    auto& group = *kept.emplace_back(make_part(bootstrap, *first, all, options));
    run_call(group, {.count = bytes / 4}, ++seed);
    expect(group.part().usable().chunk_bytes == 0, "slots are enough");
    run_call(group, {.count = 30'000}, ++seed);
    expect(group.part().is_whole(), "a longer call gets all");
  }
  options.first_bytes = 0;
  for (std::size_t bytes = 4096; bytes <= 1 << 20; bytes *= 2) {
    const NodeOptions sized = options.for_at_most(bytes, ranks);
    auto& group = *kept.emplace_back(make_part(bootstrap, *first, all, sized));
    for (const std::size_t some : {bytes, bytes / 2 + 4, bytes, std::size_t{40}}) {
      const bool in_steps = seed % 2 == 0;
      run_call(group, {.count = some / 4, .steps = in_steps ? InSteps::kBusy : InSteps::kNone},
               ++seed);
      const bool by_slots = options.fits_slots(bytes, ranks);
      expect(!by_slots || group.part().usable().chunk_bytes == 0, "no chunks beside slots");
    }
    const Layout layout(ranks, group.options());
    expect(layout.room_bytes < 6 * ranks * bytes + ranks * (64 << 10), "memory in proportion");
  }
}

// Tests the first larger call of each kind and the calls after it. In some runs the ranks' calls
// differ first. Without `grows`, rank 0 refuses to extend the memory.
void a_group_begins_small_and_grows(BoardBootstrap& bootstrap, bool grows) {
  const auto first = make_group(bootstrap, small_paths());
  std::vector<std::size_t> all(static_cast<std::size_t>(bootstrap.size()));
  std::iota(all.begin(), all.end(), std::size_t{0});
  const NodeOptions options = larger_than_beginnings();
  std::vector<std::unique_ptr<NodeGroup>> kept;  // so that each group has memory of its own
  unsigned seed = 0;
  for (const Kind kind :
       {Kind::kAllreduce, Kind::kReduceScatterBlock, Kind::kAllgather, Kind::kBcast}) {
    for (const int differs : {-1, 0, 1}) {
      auto& group = *kept.emplace_back(make_part(bootstrap, *first, all, options));
      if (!grows) NoMoreMemory::from_now_on(group);
      run_call(group, {.count = 1500}, ++seed);
      expect(!group.part().is_whole(), "what fits needs no more memory");
      if (differs >= 0) {
        const bool odd = group.rank() == differs;
        std::vector<float> data(30'000 * all.size());
        const auto message = message_of_usage_error(
            [&] { perform(group, {.count = odd ? 3U : 7000U}, kInPlace, data.data()); });
        expect(!message.empty(), "the ranks' calls differ");
      }
      for (const std::size_t count : {5000U, 30'000U, 7000U, 2U, 5000U}) {
        const bool in_steps = seed % 2 == 0;
        run_call(
            group,
            {.kind = kind, .count = count, .steps = in_steps ? InSteps::kBusy : InSteps::kNone},
            ++seed);
        if (static_cast<int>(seed) % group.size() == group.rank()) usleep(200);
      }
      expect(group.part().is_whole() == grows, "as much memory as there is");
    }
  }
}

// If the leader has no addresses left, no group is made until other groups have been freed.
void a_full_region_is_no_error(BoardBootstrap& bootstrap) {
  const auto first = make_group(bootstrap, small_paths());
  if (bootstrap.rank() != 0) return bootstrap.barrier();
  Pool& pool = *first->pool();
  std::vector<PoolPart*> parts;
  std::vector<std::size_t> ranks(static_cast<std::size_t>(bootstrap.size()));
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  while (PoolPart* part = NodeGroup::reserve(pool, ranks, small_paths())) parts.push_back(part);
  expect(parts.size() >= 8, "room for some groups");
  pool.free(*parts.back());
  expect(NodeGroup::reserve(pool, ranks, small_paths()) == parts.back(), "the only one");
  bootstrap.barrier();
}

void some_of_the_ranks_know_their_cache_groups(BoardBootstrap& bootstrap) {
  using Groups = std::vector<std::uint32_t>;
  const auto first = make_group(bootstrap, small_paths());
  first->pool()->divide(Groups{0, 1, 0, 1, 0});
  const std::pair<std::vector<std::size_t>, Groups> cases[] = {{{0, 1, 2, 3}, {0, 1, 0, 1}},
                                                               {{1, 0, 4, 3}, {0, 1, 1, 0}},
                                                               {{0, 1, 2}, {0, 0, 0}},
                                                               {{4, 2}, {0, 0}}};
  for (const auto& [members, groups] : cases) {
    const auto group = make_part(bootstrap, *first, members, small_paths());
    if (group == nullptr) continue;
    expect(group->cache_groups() == groups, "other groups");
    run_call(*group, {.count = 3}, 1);
  }
}

int run_all(const std::string& part) {
  Report report(part);
  for (const Ranks kind : {Ranks::kProcesses, Ranks::kThreads}) {
    const auto on = on_ranks(report, kind);
    on(5, "some_of_the_ranks_know_their_cache_groups", some_of_the_ranks_know_their_cache_groups);
    for (const int size : {2, 3, 5}) {
      on(size, "groups_come_and_go", groups_come_and_go);
      on(size, "operations_move_on_in_two_rings", operations_move_on_in_two_rings);
      on(size, "short_calls_need_only_lines", short_calls_need_only_lines);
      on(size, "groups_for_known_calls_begin_with_slots_for_them",
         groups_for_known_calls_begin_with_slots_for_them);
      on(size, "a_part_is_used_again_when_all_ranks_have_left",
         a_part_is_used_again_when_all_ranks_have_left);
      for (const bool grows : {true, false}) {
        on(size, std::string("a_group_begins_small_and_grows") + (grows ? "" : ", if it can"),
           [grows](BoardBootstrap& ranks) { a_group_begins_small_and_grows(ranks, grows); });
      }
    }
    on(2, "a_full_region_is_no_error", a_full_region_is_no_error);
  }
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: node_pool_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
