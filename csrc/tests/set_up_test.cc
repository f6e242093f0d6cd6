// The set-up of a communicator: what its ranks agree on, and what they do without if one of them
// lacks it. The MPI is in memory, and each rank is a process.
#include "comm/set_up/set_up.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "base/errors.h"
#include "calls/why_not.h"
#include "collectives_in_memory.h"
#include "comm/communicator.h"
#include "families/families.h"
#include "hooks.h"
#include "in_time.h"
#include "liveness/shown_ranks.h"
#include "liveness/watchdog.h"
#include "mpi/world_ranks.h"
#include "node_ranks.h"

namespace gradred::testing {
namespace {

using Collectives = CollectivesInMemory;
using Fails = Collectives::Fails;
constexpr int kAllgather = static_cast<int>(Kind::kAllgather);

// One communicator of this rank while it is set up.
struct Rank {
  explicit Rank(BoardBootstrap& board, const Settings& asked = settings())
      : ranks(board),
        wishes(asked),
        calls(mpi::get().is.comm_world, board.rank(), board.size(), hook,
              RankNames(mpi::world_ranks(mpi::get().is.comm_world))),
        choice(board.size(), {asked.plan, asked.device_plan, asked.slices, asked.one_order},
               plan_sources()),
        set_up(calls, wishes, choice, 0) {}

  BoardBootstrap& ranks;
  const Settings wishes;
  Patience hook;
  SetUpCalls calls;
  PlanChoice choice;
  SetUp set_up;
};

// The values of all ranks.
template <class Value>
std::vector<Value> of_all(BoardBootstrap& ranks, Value mine) {
  std::vector<Value> all(static_cast<std::size_t>(ranks.size()));
  ranks.allgather(&mine, sizeof mine, all.data());
  return all;
}

template <class Value>
bool is_alike(BoardBootstrap& ranks, Value mine) {
  const std::vector<Value> all = of_all(ranks, mine);
  return std::ranges::all_of(all, [&](const Value& one) { return one == mine; });
}

Settings without_memory() {
  Settings asked;
  asked.shared_memory = false;
  return asked;
}

// ---- settings -----------------------------------------------------------------------------------

void rank_0s_settings_hold(BoardBootstrap& ranks) {
  Settings asked;
  const bool first = ranks.rank() == 0;
  asked.plan = first ? "ring" : "tree";
  asked.device_plan = first ? "node" : "";
  asked.slices = first ? 3 : 4;
  asked.one_order = first;
  asked.tune = first;
  asked.profile = first;
  Rank rank(ranks, asked);
  rank.set_up.run();
  const Established& found = rank.set_up;
  expect(found.wish.plan == "ring" && found.wish.device_plan == "node", "plans");
  expect(found.wish.slices == 3 && found.wish.one_order, "slices and order");
  expect(found.tunes && found.profiles && !found.deterministic, "the others");
  expect(found.key != 0 && is_alike(ranks, found.key), "a key that all ranks know");
  expect(found.found.key == found.key, "also where ranks are looked for");
}

void a_deterministic_rank_0_decides_for_all(BoardBootstrap& ranks) {
  Settings asked;
  asked.deterministic = ranks.rank() == 0;
  Rank rank(ranks, asked);
  rank.set_up.run();
  expect(rank.set_up.deterministic && !rank.set_up.tunes, "nothing is measured");
}

// Unlike rank 0's settings, this must be so everywhere.
void threads_drive_only_if_they_may_on_all_ranks(BoardBootstrap& ranks) {
  Rank all(ranks);
  all.set_up.run();
  expect(all.set_up.threads_drive && all.set_up.starts_on_node, "all may");
  const bool last = ranks.rank() == ranks.size() - 1;
  settings().progress_thread = !last;
  Rank most(ranks);
  most.set_up.run();
  expect(!most.set_up.threads_drive, "not if one must not");
  expect(most.set_up.starts_on_node, "the MPI's functions find the end");
  if (last) mpi::for_tests().call.Grequest_start_driven = nullptr;
  Rank fewer(ranks);
  fewer.set_up.run();
  expect(!fewer.set_up.starts_on_node, "unless they do not on one");
}

// It has the length of the first message, and the MPI takes one for the other.
void another_first_call_is_an_error_for_all_that_set_up(BoardBootstrap& ranks) {
  Rank rank(ranks);
  if (ranks.rank() == 1) {
    const std::vector<char> mine(sizeof(Offer));
    std::vector<char> all(mine.size() * static_cast<std::size_t>(ranks.size()));
    rank.calls.allgather(mine.data(), mine.size(), all.data());
  } else {
    const std::string error = error_of<UsageError>([&] { rank.set_up.run(); });
    expect(contains(error, "first calls"), error);
  }
}

// ---- tags ---------------------------------------------------------------------------------------

std::vector<int> group_of(const BoardBootstrap& ranks) {
  std::vector<int> group(static_cast<std::size_t>(ranks.size()));
  std::iota(group.begin(), group.end(), 0);
  return group;
}

// Sets a communicator up, and returns the number of its tags, which is the same on all ranks.
int number_of_next(BoardBootstrap& ranks, std::unique_ptr<TagRange>& kept) {
  Rank rank(ranks, without_memory());
  rank.set_up.run();
  kept = std::move(rank.set_up.tag_range);
  const int number = kept != nullptr ? kept->id : -1;
  expect(is_alike(ranks, number), "the number " + std::to_string(number) + " is this rank's");
  return number;
}

void communicators_of_one_group_share_a_duplicate_and_no_tags(BoardBootstrap& ranks) {
  std::unique_ptr<TagRange> first, second, third;
  expect(number_of_next(ranks, first) == 0, "the lowest one");
  const std::uint64_t calls = Collectives::calls();
  expect(number_of_next(ranks, second) == 1, "numbers that were only offered are free");
  expect(Collectives::calls() - calls == 2, "two messages: the offers, and the places");
  expect(first->duplicate == second->duplicate, "the duplicate that all have");
  expect(Collectives::duplicates() == ranks.size(), "only one was made");
  expect(second->duplicate->comm != mpi::get().is.comm_world, "not the program's communicator");
  first.reset();
  ranks.barrier();
  expect(number_of_next(ranks, third) == 0, "given back");
}

void a_number_that_one_rank_uses_is_avoided_by_all(BoardBootstrap& ranks) {
  for (int number = 0; ranks.rank() == ranks.size() - 1 && number < 5; ++number) {
    Registry::get().keep_id(group_of(ranks), number);
  }
  std::unique_ptr<TagRange> kept, next;
  expect(number_of_next(ranks, kept) == 5, "the first that is free on all");
  if (ranks.rank() == 0) Registry::get().keep_id(group_of(ranks), 6);
  expect(number_of_next(ranks, next) == 7, "whoever uses it");
}

// Rank 0 offers a few numbers of the first window.
void ranks_without_a_common_number_go_on_to_the_next_window(BoardBootstrap& ranks) {
  const bool last = ranks.rank() == ranks.size() - 1;
  for (int number = 0; last && number < 10; ++number) {
    Registry::get().keep_id(group_of(ranks), number);
  }
  std::unique_ptr<TagRange> kept, next;
  expect(number_of_next(ranks, kept) == 64, "none of those that rank 0 offers first");
  for (int number = 10; last && number < 64; ++number) {
    Registry::get().keep_id(group_of(ranks), number);
  }
  expect(number_of_next(ranks, next) == 65, "one rank begins in another window");
}

void without_a_number_there_are_no_messages(BoardBootstrap& ranks) {
  const int all = 64 * static_cast<int>(Registry::get().number_windows());
  for (int number = 0; ranks.rank() == 0 && number < all; ++number) {
    Registry::get().keep_id(group_of(ranks), number);
  }
  Rank rank(ranks, without_memory());
  rank.set_up.run();
  expect(rank.set_up.tag_range == nullptr && rank.set_up.path == nullptr, "none on any rank");
  expect(rank.set_up.place.why_no_messages == kNoneLeft, "with the reason");
  expect(rank.set_up.place.why_no_mpi.empty(), "the MPI may carry calls out");
  expect(Collectives::duplicates() == 0, "none was made in vain");
}

void ranks_go_without_a_duplicate_that_one_of_them_lacks(BoardBootstrap& ranks) {
  const mpi::Handle world = mpi::get().is.comm_world;
  const mpi::Handle handler = Collectives::error_handler(world);
  Settings asked = without_memory();
  asked.deterministic = true;
  Rank rank(ranks, asked);
  const bool last = ranks.rank() == ranks.size() - 1;
  if (last) Collectives::fail_next(Collectives::kDuplicate, 7, Fails::kLater);
  rank.set_up.run();
  expect(rank.set_up.path == nullptr && rank.set_up.found.duplicate == 0, "none on any rank");
  expect(rank.set_up.place.why_no_messages == kNoneLeft, "with the reason");
  expect(rank.set_up.place.why_no_mpi == kNoneLeft, "the MPI adds in an order of its own");
  expect(Collectives::error_handler(world) == handler, "the program's error handler is back");
  ranks.barrier();
  expect(Collectives::duplicates() == 0, "those that some ranks had are freed");
}

// ---- memory -------------------------------------------------------------------------------------

void ranks_of_a_host_share_memory_and_know_each_other(BoardBootstrap& ranks) {
  Rank rank(ranks);
  rank.set_up.run();
  const auto peers = static_cast<std::size_t>(ranks.size() - 1);
  expect(rank.set_up.node != nullptr && rank.set_up.path != nullptr, "memory and messages");
  expect(rank.set_up.place.why_no_memory.empty() && rank.set_up.place.topology.hosts == 1, "both");
  expect(rank.set_up.found.local_peers.size() == peers, "all have met");
  expect(known_local_peers(mpi::get().is.comm_world).size() == peers, "for later calls, too");
  const std::uint64_t calls = Collectives::calls();
  Rank next(ranks);
  next.set_up.run();
  expect(Collectives::calls() - calls == 1, "all is there: one message");
  expect(next.set_up.node != nullptr && next.set_up.node->pool() == rank.set_up.node->pool(),
         "a part of the same memory");
  expect(next.set_up.found.local_peers.size() == peers, "and they know each other");
}

// Where the part of shared memory begins that rank 0 would offer; 0 on other ranks.
std::uint64_t part_offered(const Rank& rank) {
  if (rank.calls.rank() != 0) return 0;
  MemoryAgreement agreement(0, rank.calls.names(), MemoryOffer::Wish::kShares, node_options({}));
  agreement.settle(std::vector{agreement.offer(), MemoryOffer()});
  return agreement.offer().begin;
}

void one_rank_without_memory_means_messages_for_all(BoardBootstrap& ranks) {
  Rank before(ranks);
  before.set_up.run();  // even if they share memory already
  const bool last = ranks.rank() == ranks.size() - 1;
  Rank rank(ranks, last ? without_memory() : Settings());
  const std::uint64_t offered = part_offered(rank);
  rank.set_up.run();
  expect(part_offered(rank) == offered, "the part that rank 0 offered is free again");
  expect(rank.set_up.node == nullptr && rank.set_up.host == nullptr, "no memory");
  expect(rank.set_up.place.why_no_memory == "GRADRED_SHM is off", "with the reason");
  expect(rank.set_up.path != nullptr, "but messages");
  Rank after(ranks);
  after.set_up.run();
  expect(after.set_up.node != nullptr, "the next one shares memory again");
}

void allow_no_files() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_NOFILE, &none);
}

void memory_that_one_rank_cannot_open_means_messages_for_all(BoardBootstrap& ranks) {
  if (ranks.rank() == ranks.size() - 1) allow_no_files();
  Rank rank(ranks);
  rank.set_up.run();
  expect(rank.set_up.node == nullptr && rank.set_up.path != nullptr, "no memory, but messages");
  expect(!rank.set_up.place.why_no_memory.empty(), "with a reason");
}

void deterministic_ranks_do_not_go_on_without_memory(BoardBootstrap& ranks) {
  if (ranks.rank() == ranks.size() - 1) allow_no_files();
  Settings asked;
  asked.deterministic = true;
  Rank rank(ranks, asked);
  const std::string error = error_of<TransportError>([&] { rank.set_up.run(); });
  expect(contains(error, "GRADRED_DETERMINISTIC") && contains(error, "GRADRED_SHM=0"), error);
}

// ---- failures -----------------------------------------------------------------------------------

// The lowest rank is killed: the others name the lowest one that has ended, and they end, too.
void a_rank_that_is_killed_is_named_in_time(BoardBootstrap& ranks) {
  Rank before(ranks);
  before.set_up.run();  // now they know each other
  if (ranks.rank() == 0) raise(SIGKILL);
  Rank rank(ranks);
  const std::uint64_t begin = now_ns();
  const std::string error = error_of<PeerLost>([&] { rank.set_up.run(); });
  expect(in_time(1e-9 * static_cast<double>(now_ns() - begin), 2), "in two seconds");
  expect(contains(error, "rank 0") && contains(error, "has ended"), error);
  expect(contains(error, "the first call on a communicator of 3 ranks"), error);
}

void a_wait_for_a_rank_that_does_not_come_has_an_end(BoardBootstrap& ranks) {
  if (ranks.rank() != 1) {
    wait_limits().timeout = 200'000'000;
    Rank rank(ranks);
    const std::string error = error_of<TimeoutError>([&] { rank.set_up.run(); });
    expect(contains(error, "the first call on a communicator of 3 ranks"), error);
  }
  ranks.barrier();
}

// The peers do not know of the error, but of the end of the process.
void an_error_of_the_mpi_ends_the_communicator(BoardBootstrap& ranks) {
  Rank before(ranks);
  before.set_up.run();
  const auto comm =
      std::make_shared<Communicator>(mpi::get().is.comm_world, ranks.rank(), ranks.size());
  Patience hook;
  if (ranks.rank() == 0) {
    Collectives::fail_next(kAllgather, 7, Fails::kAtOnce);
    const std::string error = error_of<TransportError>([&] { comm->prepare(hook); });
    expect(contains(error, "MPI_Iallgather failed"), error);
    expect(contains(error, Collectives::error_text(7)), error);
    const std::string again = error_of<TransportError>([&] { comm->prepare(hook); });
    expect(contains(again, Collectives::error_text(7)), again);
    expect(process_poisoned, "the peers wait for it");
    raise(SIGKILL);
  }
  const std::string error = error_of<PeerLost>([&] { comm->prepare(hook); });
  expect(contains(error, "rank 0"), error);
  const std::string again = error_of<PeerLost>([&] { comm->prepare(hook); });
  expect(contains(again, "rank 0") && contains(again, "can no longer be used"), again);
}

void an_interrupt_ends_the_wait(BoardBootstrap& ranks) {
  if (ranks.rank() == 0) {
    Interrupts hook;
    const mpi::Handle world = mpi::get().is.comm_world;
    SetUpCalls calls(world, 0, ranks.size(), hook, RankNames(mpi::world_ranks(world)));
    try {
      calls.barrier();
      throw Failed("the wait goes on");
    } catch (const Interrupted&) {
    }
  }
  ranks.barrier();
}

void a_reason_of_one_rank_is_an_error_of_all(BoardBootstrap& ranks) {
  Rank rank(ranks);
  throw_if_any(rank.calls, "", "it", "");
  const std::string reason = ranks.rank() == 1 ? "no room" : "";
  const std::string error =
      error_of<TransportError>([&] { throw_if_any(rank.calls, reason, "it fails", "Make room"); });
  expect(error == "it fails: no room. Make room", error);
}

void ranks_wait_for_a_duplicate_of_the_program(BoardBootstrap& ranks) {
  const mpi::Mpi& mpi = mpi::get();
  Patience hook;
  mpi.call.Comm_set_errhandler(mpi.is.comm_world, mpi.is.errors_return);
  for (const int code : {0, 7}) {
    mpi::Handle duplicate = 0, request = 0;
    const bool fails = code != 0 && ranks.rank() == 0;
    if (fails) Collectives::fail_next(Collectives::kDuplicate, code, Fails::kLater);
    mpi.call.Comm_idup(mpi.is.comm_world, &duplicate, &request);
    if (ranks.rank() == 1) usleep(20'000);
    expect(await_duplicate(mpi.is.comm_world, request, hook) == (fails ? code : 0), "the code");
    expect((duplicate != 0) == !fails, "the duplicate");
  }
}

int run_all(const std::string& part) {
  Report report(part);
  const auto run = [&](std::vector<int> sizes, const std::string& name, const Body& body) {
    for (const int size : sizes) {
      Collectives::install(size);
      on_ranks(report, Ranks::kProcesses)(size, name, [&](BoardBootstrap& ranks) {
        Collectives::rank() = ranks.rank();
        show_rank({.pid = getpid(), .rank = ranks.rank(), .size = size, .spawned = true});
        this_process();  // as each rank does while files can be opened
        host_id();
        body(ranks);
      });
    }
  };
  run({2, 3}, "rank_0s_settings_hold", rank_0s_settings_hold);
  run({2, 3}, "a_deterministic_rank_0_decides_for_all", a_deterministic_rank_0_decides_for_all);
  run({2, 3}, "threads_drive_only_if_they_may_on_all_ranks",
      threads_drive_only_if_they_may_on_all_ranks);
  run({2, 3}, "another_first_call_is_an_error_for_all_that_set_up",
      another_first_call_is_an_error_for_all_that_set_up);
  run({2, 3}, "communicators_of_one_group_share_a_duplicate_and_no_tags",
      communicators_of_one_group_share_a_duplicate_and_no_tags);
  run({2, 3}, "a_number_that_one_rank_uses_is_avoided_by_all",
      a_number_that_one_rank_uses_is_avoided_by_all);
  run({2, 3}, "ranks_without_a_common_number_go_on_to_the_next_window",
      ranks_without_a_common_number_go_on_to_the_next_window);
  run({2, 3}, "without_a_number_there_are_no_messages", without_a_number_there_are_no_messages);
  run({2, 3}, "ranks_go_without_a_duplicate_that_one_of_them_lacks",
      ranks_go_without_a_duplicate_that_one_of_them_lacks);
  run({2, 3}, "ranks_of_a_host_share_memory_and_know_each_other",
      ranks_of_a_host_share_memory_and_know_each_other);
  run({2, 3}, "one_rank_without_memory_means_messages_for_all",
      one_rank_without_memory_means_messages_for_all);
  run({2, 3}, "memory_that_one_rank_cannot_open_means_messages_for_all",
      memory_that_one_rank_cannot_open_means_messages_for_all);
  run({2, 3}, "deterministic_ranks_do_not_go_on_without_memory",
      deterministic_ranks_do_not_go_on_without_memory);
  run({3}, "a_rank_that_is_killed_is_named_in_time", a_rank_that_is_killed_is_named_in_time);
  run({3}, "a_wait_for_a_rank_that_does_not_come_has_an_end",
      a_wait_for_a_rank_that_does_not_come_has_an_end);
  run({2, 3}, "an_error_of_the_mpi_ends_the_communicator",
      an_error_of_the_mpi_ends_the_communicator);
  run({2}, "an_interrupt_ends_the_wait", an_interrupt_ends_the_wait);
  run({2, 3}, "a_reason_of_one_rank_is_an_error_of_all", a_reason_of_one_rank_is_an_error_of_all);
  run({2, 3}, "ranks_wait_for_a_duplicate_of_the_program",
      ranks_wait_for_a_duplicate_of_the_program);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
