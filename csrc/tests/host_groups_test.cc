// Agreement between host groups. The relays are threads, and their connections stay
// inside this process. Also tests the encoding of messages, and how the groups find each other.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "boards.h"
#include "named/coordinator.h"
#include "named/relay.h"
#include "named/sockets.h"
#include "node_calls.h"

namespace gradred::testing {
namespace {

HostGroupMessage ready(const std::string& name, std::size_t count, int rank) {
  return {.kind = Said::kReady, .rank = rank, .name = name, .submission = sum_of(count)};
}

// ---- messages as bytes --------------------------------------------------------------------------

bool same(const HostGroupMessage& one, const HostGroupMessage& other) {
  return one.kind == other.kind && one.more == other.more && one.some_joined == other.some_joined &&
         one.chunk == other.chunk && one.submission.priority == other.submission.priority &&
         one.submission.form == other.submission.form && one.failure == other.failure &&
         one.rank == other.rank && one.name == other.name && one.text == other.text &&
         one.ranks == other.ranks &&
         difference(RankNames(), {one.submission, "one"}, {other.submission, "other"}).empty() &&
         one.structure == other.structure;
}

HostGroupMessage any_message(std::mt19937& random) {
  const auto below = [&](unsigned end) { return static_cast<int>(random() % end); };
  HostGroupMessage made{.kind = static_cast<Said>(below(7)),
                        .more = below(2) == 1,
                        .some_joined = below(2) == 1,
                        .rank = below(100) - 1,
                        .name = "name" + std::to_string(below(9000)),
                        .text = std::string(static_cast<std::size_t>(below(300)), 't')};
  if (below(3) == 0) made.failure = static_cast<Failure>(below(3));
  if (made.has_submission()) {
    made.structure = "a tree of " + made.name;
    made.submission = sum_of(made.name.size() + (below(9) == 0 ? 9'000'000 : 0), below(3));
    made.submission.form = static_cast<NamedForm>(below(3));
    made.chunk = static_cast<std::uint32_t>(random()) % made.submission.chunks();
  }
  for (int i = below(5); i > 0; --i) made.ranks.push_back(below(1000));
  return made;
}

void messages_come_as_they_were_sent(BoardBootstrap&) {
  std::mt19937 random(1);
  HostGroupEncoder encoder;
  HostGroupDecoder decoder;
  std::vector<HostGroupMessage> sent;
  std::size_t next = 0;
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<std::byte> bytes;
    for (int i = 0; i < 100; ++i) {
      sent.push_back(any_message(random));
      encoder.add(sent.back(), bytes);
    }
    for (std::size_t begin = 0; begin < bytes.size();) {  // in pieces of any size
      const std::size_t count = std::min<std::size_t>(bytes.size() - begin, random() % 5000);
      decoder.add(std::span(bytes).subspan(begin, count), [&](const HostGroupMessage& message) {
        expect(same(message, sent.at(next++)), "a message has changed on its way");
      });
      begin += count;
    }
  }
  expect(next == sent.size(), "messages are missing");
}

void a_name_that_was_sent_is_a_number(BoardBootstrap&) {
  HostGroupEncoder encoder;
  std::vector<std::byte> first, second, other;
  encoder.add(ready("a gradient of some layer", 5, 0), first);
  encoder.add(ready("a gradient of some layer", 5, 0), second);
  encoder.add(ready("a gradient of some layer", 6, 0), other);
  expect(second.size() < 40 && first.size() > 200, "the second time it is short");
  expect(other.size() == first.size(), "another shape is sent in full");
}

void bytes_of_no_message_are_an_error(BoardBootstrap&) {
  std::mt19937 random(2);
  for (int turn = 0; turn < 20'000; ++turn) {
    HostGroupEncoder encoder;
    std::vector<std::byte> bytes;
    for (int i = 0; i < 3; ++i) encoder.add(any_message(random), bytes);
    for (unsigned i = random() % 8; i > 0; --i) {
      bytes[random() % (turn % 2 == 0 ? 40 : bytes.size())] = static_cast<std::byte>(random());
    }
    try {
      HostGroupDecoder().add(bytes, [](const HostGroupMessage&) {});
    } catch (const TransportError&) {
    }
  }
}

// ---- the coordinator ----------------------------------------------------------------------------

void the_last_host_group_completes_a_name(BoardBootstrap&) {
  Coordinator coordinator(3, 1000, RankNames());
  coordinator.receive(2, ready("b", 5, 4));
  coordinator.receive(0, ready("a", 5, 0));
  coordinator.receive(1, ready("b", 5, 2));
  expect(!coordinator.any_agreed(), "one is missing");
  const auto waiting = coordinator.waiting(~std::uint64_t{0});
  expect(waiting.size() == 2, "two names wait");
  coordinator.receive(0, {.kind = Said::kLacks, .name = "nobody's", .ranks = {1}});
  coordinator.receive(0, {.kind = Said::kLacks, .name = "b", .ranks = {0, 1}});
  for (const HostGroupMessage& one : coordinator.waiting(~std::uint64_t{0})) {
    expect(one.ranks == (one.name == "b" ? std::vector{0, 1} : std::vector<int>{}), "who lacks it");
  }
  coordinator.receive(0, ready("b", 5, 1));
  coordinator.receive(1, ready("a", 5, 3));
  coordinator.receive(2, ready("a", 5, 5));
  const auto taken = coordinator.take();
  expect(taken.size() == 2 && taken[0].name == "b" && taken[1].name == "a", "in this order");
  expect(taken[0].more && !taken[1].more, "as one batch");
  expect(!coordinator.any_agreed() && !coordinator.any_waiting(), "that was all");
}

void what_a_host_group_submits_as_alone_is_in_no_batch(BoardBootstrap&) {
  Coordinator coordinator(2, 1000, RankNames());
  for (const std::string name : {"first", "second", "third", "fourth"}) {
    for (const int rank : {0, 2}) {
      HostGroupMessage message = ready(name, 5, rank);
      message.submission.priority = name == "first" ? 1 : 0;  // the others might go in chunks
      if (name == "second" && rank == 2) message.submission.form = NamedForm::kAlone;
      coordinator.receive(static_cast<std::size_t>(rank / 2), message);
    }
  }
  const auto taken = coordinator.take();
  std::vector<bool> more;
  for (const HostGroupMessage& one : taken) more.push_back(one.more);
  expect(more == std::vector{false, false, true, false}, "only the last two are a batch");
  expect(taken[1].submission.form == NamedForm::kAlone, "all host groups learn why");
}

void host_groups_that_differ_get_an_error(BoardBootstrap&) {
  Coordinator coordinator(2, 1000, RankNames());
  coordinator.receive(0, ready("a", 5, 0));
  coordinator.receive(1, ready("a", 6, 3));
  coordinator.receive(0, ready("b", 5, 0));
  coordinator.receive(1, ready("b", 5, 3));
  for (const std::size_t host_group : {0, 1}) {
    HostGroupMessage leaf = ready("c", 1, static_cast<int>(3 * host_group));
    leaf.structure = host_group == 0 ? "{'a': *}" : "{'b': *}";
    leaf.submission = leaf_of(leaf.structure);
    coordinator.receive(host_group, leaf);
  }
  const auto taken = coordinator.take();
  expect(taken[0].text.find("rank 0") != std::string::npos &&
             taken[0].text.find("rank 3") != std::string::npos && !taken[0].more,
         "the error names both: " + taken[0].text);
  expect(taken[1].text.empty(), "the next name is well");
  expect(taken[2].text.find("{'a': *}") != std::string::npos &&
             taken[2].text.find("{'b': *}") != std::string::npos,
         "the error has both structures: " + taken[2].text);
}

void the_most_urgent_goes_first(BoardBootstrap&) {
  Coordinator coordinator(2, 1000, RankNames());
  const auto submit = [&](const std::string& name, std::size_t count, int priority) {
    for (const int rank : {0, 2}) {
      HostGroupMessage message = ready(name, count, rank);
      message.submission.priority =
          rank == 0 ? priority : -5;  // the highest priority of all ranks applies
      coordinator.receive(static_cast<std::size_t>(rank / 2), message);
    }
  };
  const auto next = [&] {
    std::string names;
    for (const HostGroupMessage& one : coordinator.take())
      names += one.name + std::to_string(one.chunk);
    return names;
  };
  submit("large", 3 * Submission::kChunkBytes / 4, 0);
  expect(next() == "large0" && !coordinator.any_agreed(), "whole: nothing has been more urgent");
  submit("urgent", 1, 1);
  expect(next() == "urgent0", "from now on large ones go in chunks");
  submit("large", 3 * Submission::kChunkBytes / 4, 0);
  expect(next() == "large0", "the first chunk alone");
  submit("last", 1, -1);
  submit("urgent", 1, 1);
  for (const std::size_t host_group : {0, 1})
    coordinator.receive(host_group, {.kind = Said::kJoined, .rank = 0});
  expect(next() == "urgent0large1", "the urgent one, then the next chunk");
  expect(next() == "large2", "the last chunk");
  const auto taken = coordinator.take();
  expect(taken.size() == 2 && taken[0].name == "last", "what has no hurry");
  expect(taken[1].kind == Said::kAllJoined && !coordinator.any_agreed(), "the join comes last");
}

void what_was_agreed_on_comes_before_the_end(BoardBootstrap&) {
  Coordinator coordinator(1, 1000, RankNames());
  HostGroupMessage large = ready("large", 3 * Submission::kChunkBytes / 4, 0);
  large.submission.priority = -1;
  coordinator.receive(0, large);
  coordinator.receive(0, ready("small", 3, 0));
  coordinator.receive(0, {.kind = Said::kLeft, .text = "rank 0 has left"});
  const auto taken = coordinator.take();
  expect(taken.size() == 5 && taken[0].name == "small" && taken[3].chunk == 2, "all of it");
  expect(taken[4].kind == Said::kLeft && !coordinator.any_agreed(), "then the end");
}

void host_groups_join(BoardBootstrap&) {
  Coordinator coordinator(2, 0, RankNames());
  coordinator.receive(0, ready("a", 5, 0));
  coordinator.receive(1, {.kind = Said::kJoined, .rank = 3});
  coordinator.receive(0, ready("b", 5, 0));
  HostGroupMessage gather = ready("c", 5, 0);
  gather.submission.kind = NamedKind::kAllgather;
  coordinator.receive(0, gather);
  coordinator.receive(0, {.kind = Said::kJoined, .rank = 1});
  const auto taken = coordinator.take();
  expect(taken.size() == 4 && taken[0].text.empty() && taken[1].text.empty(), "zeros for two sums");
  expect(!taken[2].text.empty(), "an allgather takes an array of each");
  expect(taken[3].kind == Said::kAllJoined && taken[3].rank == 1, "rank 1 was the last");
  coordinator.receive(0, ready("d", 5, 0));
  expect(!coordinator.any_agreed(), "the join is over");
}

// ---- relays -------------------------------------------------------------------------------------

// Host groups of two ranks each. Each rank is a thread, and each group has its own board.
class Job {
 public:
  static constexpr std::size_t kRanks = 2;

  explicit Job(std::size_t host_groups, std::uint64_t most_fused = 4000) : most_fused_(most_fused) {
    std::vector<Socket> coordinators;
    for (std::size_t host_group = 0; host_group < host_groups; ++host_group) {
      memory_.push_back(std::make_unique<std::byte[]>(named::Board::bytes(kRanks)));
      const int first = static_cast<int>(host_group * kRanks);
      for (int place = 0; place < static_cast<int>(kRanks); ++place) {
        boards_.push_back(std::make_unique<named::Board>(
            memory_[host_group].get(), kRanks, static_cast<std::size_t>(place), most_fused,
            RankNames({}, {first, first + 1}), nullptr, true));
      }
      ends_.emplace_back();
      if (host_group == 0) continue;
      std::array<int, 2> pair{};
      expect(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()) == 0, "a pair");
      coordinators.emplace_back(pair[0]);
      ends_.back().emplace_back(pair[1]);
    }
    ends_[0] = std::move(coordinators);
  }

  named::Board& board(std::size_t rank) { return *boards_[rank]; }
  std::size_t host_groups() const { return ends_.size(); }
  // The relay runs on the first rank of a host group.
  std::unique_ptr<Relay> relay(std::size_t host_group, FailureReport* reported = nullptr) {
    const bool leads = host_group == 0;
    return std::make_unique<Relay>(
        board(host_group * kRanks),
        leads ? std::make_unique<Coordinator>(host_groups(), most_fused_, RankNames()) : nullptr,
        std::move(ends_[host_group]),
        std::vector<std::string>(leads ? host_groups() - 1 : 1,
                                 leads ? "rank of a host group" : "rank 0"),
        [reported](const FailureReport& report) {
          if (reported != nullptr) *reported = report;
        });
  }

 private:
  const std::uint64_t most_fused_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::unique_ptr<named::Board>> boards_;
  std::vector<std::vector<Socket>> ends_;
};

std::uint64_t all_saw_the_same(BoardBootstrap& bootstrap, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(bootstrap.size()));
  bootstrap.allgather(&mine, sizeof mine, all.data());
  for (const std::uint64_t one : all) expect(one == all.front(), "the logs differ");
  return mine;
}

void host_groups_agree_on_one_order(Job& job, BoardBootstrap& ranks) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  const auto relay = rank % Job::kRanks == 0 ? job.relay(rank / Job::kRanks) : nullptr;
  named::Board& board = job.board(rank);
  constexpr int kNames = 40, kTurns = 10;
  constexpr std::uint64_t kLong = 10'000'000'000;
  std::mt19937 random(static_cast<unsigned>(rank));
  std::uint64_t seen = 1;
  const auto carry = [&] {
    if (relay != nullptr) relay->carry(random() % 2 == 0);
  };
  // Calls the relay as a waiting thread does. That thread may then sleep without notice, so the
  // relay's own thread must receive the last messages.
  const auto look = [&] {
    if (relay == nullptr || random() % 3 == 0) return;
    for (auto looks = random() % 50; looks > 0; --looks) relay->look();
    if (random() % 2 == 0) relay->rest();
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<int> order(kNames);
    for (int i = 0; i < kNames; ++i) order[static_cast<std::size_t>(i)] = i;
    std::ranges::shuffle(order, random);
    std::map<named::Board::Place, int> mine;
    int taken = 0;
    const auto take = [&](bool wants_work) {
      for (const auto& entry : board.take(wants_work)) {
        const auto found = mine.find(entry.place);
        expect(found != mine.end(), "an entry that this rank has not submitted");
        expect(entry.problem.empty(), entry.problem);
        seen = (seen * 31 + static_cast<std::uint64_t>(found->second)) * 2 + (entry.joins ? 1 : 0);
        seen = seen * 31 + entry.chunk;
        if (!entry.is_last_chunk) continue;
        mine.erase(found);
        ++taken;
      }
      carry();
    };
    for (const int name : order) {
      const auto count = static_cast<std::size_t>(name % 7 == 6 ? 6'000'000 : name + 1);
      const auto round = board.arrive("name" + std::to_string(name),
                                      sum_of(count, static_cast<int>(random() % 4)));
      expect(round.has_value(), "there is room");
      mine.emplace(*round, name);
      carry();
      if (random() % 4 == 0) take(random() % 2 == 0);
    }
    while (taken < kNames) {
      look();
      const std::uint64_t begin = now_ns();
      if (!board.any()) Sleep::until(board.news(), kLong);
      expect(now_ns() - begin < kLong, "a rank that sleeps learns what all have submitted");
      take(true);
    }
  }
  all_saw_the_same(ranks, seen);
  if (ranks.rank() == ranks.size() - 1) board.leave("the last rank has left");
  while (!board.any_left()) Sleep::until(board.news(), 1'000'000'000);
  expect(board.why_left() == "the last rank has left", board.why_left());
  if (relay != nullptr) relay->settle();
  ranks.barrier();
}

// Rank 1 of host group 0 and all ranks of host group 1 have joined without arrays.
void ranks_and_host_groups_have_joined(Job& job, BoardBootstrap& ranks) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  const auto relay = rank % Job::kRanks == 0 ? job.relay(rank / Job::kRanks) : nullptr;
  named::Board& board = job.board(rank);
  const bool joins_first = rank == 1 || rank / Job::kRanks == 1;
  if (joins_first) board.join();
  if (relay != nullptr) relay->carry();
  ranks.barrier();
  if (!joins_first) {
    board.arrive("sum", sum_of(7));
    board.join();
    if (relay != nullptr) relay->carry();
  }
  std::vector<named::Board::Entry> entries;
  while (entries.size() < 2) {
    if (!board.any()) Sleep::until(board.news(), 1'000'000'000);
    for (auto& entry : board.take()) entries.push_back(std::move(entry));
    if (relay != nullptr) relay->carry();
  }
  expect(entries[0].submission->counts[0] == 7 && entries[0].problem.empty(), "a sum with zeros");
  expect((entries[0].place == named::Board::kSlots) == (rank / Job::kRanks == 1),
         "whose host group has no array");
  expect(entries[1].is_join() && entries[1].last_joined != 1, "all");
  ranks.barrier();
}

// A rank identifies its submission by the place until it has taken the last entry for it.
void a_place_is_kept_until_all_have_taken_its_entry(BoardBootstrap&) {
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory(named::Board::bytes(2) / sizeof(Line) + 1);
  const auto board_of = [&](std::size_t rank) {
    return named::Board(memory[0].bytes, 2, rank, 0, RankNames(), nullptr, true);
  };
  named::Board first = board_of(0), second = board_of(1);
  const auto place = first.arrive("a", sum_of(1, 0));
  expect(place == second.arrive("a", sum_of(1, 0)), "one place for both");
  for (HostGroupMessage& message : first.take_outgoing()) {
    message.kind = Said::kAgreed;
    expect(first.receive({&message, 1}), "there is room");
  }
  expect(first.take().size() == 1, "it is in the log");
  for (std::uint32_t i = 0; i < named::Board::kSlots; ++i) {
    expect(first.arrive("b" + std::to_string(i), sum_of(1, 0)) != place, "rank 1 has not taken it");
  }
  expect(second.take().size() == 1, "now it has");
  expect(first.arrive("one more", sum_of(1, 0)) == place, "the place is free");
}

void a_host_group_breaks_off(Job& job, BoardBootstrap& ranks) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  FailureReport reported;
  auto relay = rank % Job::kRanks == 0 ? job.relay(rank / Job::kRanks, &reported) : nullptr;
  named::Board& board = job.board(rank);
  ranks.barrier();
  const bool last = rank / Job::kRanks == job.host_groups() - 1;
  if (last) {
    relay.reset();
  } else {
    const auto round = board.arrive("a", sum_of(1));
    if (relay != nullptr) relay->carry();
    for (int looks = 0; looks < 50 && board.missing(*round).empty(); ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    while (!board.any_left()) Sleep::until(board.news(), 1'000'000'000);
    expect(board.why_left().find("has ended") != std::string::npos, board.why_left());
    if (relay != nullptr) expect(reported.kind == Failure::kPeerLost, "its leader gets the report");
  }
  ranks.barrier();
}

void structures_are_compared_between_host_groups(Job& job, BoardBootstrap& ranks) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  const auto relay = rank % Job::kRanks == 0 ? job.relay(rank / Job::kRanks) : nullptr;
  named::Board& board = job.board(rank);
  ranks.barrier();
  for (const bool differ : {false, true, false, true}) {
    const std::string structure = differ && rank / Job::kRanks == 1 ? "(*,)" : "[*]";
    board.arrive("a", leaf_of(structure), {.structure = structure});
    if (relay != nullptr) relay->carry();
    std::vector<named::Board::Entry> entries;
    while ((entries = board.take()).empty()) {
      if (!board.any()) Sleep::until(board.news(), 1'000'000'000);
      if (relay != nullptr) relay->carry();
    }
    const std::string& problem = entries[0].problem;
    const bool both =
        problem.find("(*,)") != std::string::npos && problem.find("[*]") != std::string::npos;
    expect(both == differ && problem.empty() == !differ, "with both structures: " + problem);
    ranks.barrier();
  }
}

void who_is_missing_elsewhere_is_known(Job& job, BoardBootstrap& ranks) {
  const auto rank = static_cast<std::size_t>(ranks.rank());
  const auto relay = rank % Job::kRanks == 0 ? job.relay(rank / Job::kRanks) : nullptr;
  named::Board& board = job.board(rank);
  ranks.barrier();
  if (rank != 3) {
    const auto round = board.arrive("a", sum_of(1));
    if (relay != nullptr) relay->carry();
    std::vector<std::string> missing;
    for (int looks = 0; looks < 300 && missing.empty(); ++looks) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      missing = board.missing(*round);
    }
    expect(missing == std::vector<std::string>{"rank 3"}, "rank 3 is missing");
  }
  ranks.barrier();
}

// ---- how they find each other -------------------------------------------------------------------

void host_groups_meet_and_strangers_do_not(BoardBootstrap&) {
  Accepting accepting(3);
  const Meeting meeting = accepting.meeting();
  Meeting wrong = meeting;
  wrong.secret[0] ^= 1;
  Connecting stranger(wrong, 1), one(meeting, 1), two(meeting, 2);
  bool all = false, here = false, there = false;
  for (int looks = 0; looks < 3000 && !(all && here && there); ++looks) {
    expect(!stranger.advance(), "who does not know the secret is sent away");
    all = accepting.advance();
    here = one.advance();
    there = two.advance();
    usleep(1000);
  }
  expect(all && here && there, "all have met: " + one.tried());
  std::vector<Socket> sockets = accepting.take();
  expect(!sockets[0].is_open() && sockets[1].is_open() && sockets[2].is_open(), "by host group");
  const Socket end = two.take();
  expect(write(sockets[2].fd(), "x", 1) == 1, "one says a word");
  char word = 0;
  for (int looks = 0; looks < 1000 && read(end.fd(), &word, 1) != 1; ++looks) usleep(1000);
  expect(word == 'x', "the right one receives it");
}

void an_address_where_nobody_listens_is_reported(BoardBootstrap&) {
  Meeting meeting;
  {
    const Accepting accepting(2);
    meeting = accepting.meeting();
  }
  Connecting connecting(meeting, 1);
  for (int looks = 0; looks < 100; ++looks) expect(!connecting.advance(), "nobody is there");
  expect(connecting.tried().find("efused") != std::string::npos, connecting.tried());
}

int run_all(const std::string& part) {
  Report report(part);
  const auto alone = [&](const std::string& name, const auto& body) {
    on_ranks(report, Ranks::kThreads)(1, name, body);
  };
  alone("messages_come_as_they_were_sent", messages_come_as_they_were_sent);
  alone("a_name_that_was_sent_is_a_number", a_name_that_was_sent_is_a_number);
  alone("bytes_of_no_message_are_an_error", bytes_of_no_message_are_an_error);
  alone("the_last_host_group_completes_a_name", the_last_host_group_completes_a_name);
  alone("what_a_host_group_submits_as_alone_is_in_no_batch",
        what_a_host_group_submits_as_alone_is_in_no_batch);
  alone("host_groups_that_differ_get_an_error", host_groups_that_differ_get_an_error);
  alone("the_most_urgent_goes_first", the_most_urgent_goes_first);
  alone("what_was_agreed_on_comes_before_the_end", what_was_agreed_on_comes_before_the_end);
  alone("host_groups_join", host_groups_join);
  alone("host_groups_meet_and_strangers_do_not", host_groups_meet_and_strangers_do_not);
  alone("an_address_where_nobody_listens_is_reported", an_address_where_nobody_listens_is_reported);
  const auto on = [&](std::size_t host_groups, const std::string& name, const auto& body) {
    Job job(host_groups);
    on_ranks(report, Ranks::kThreads)(static_cast<int>(host_groups * Job::kRanks), name,
                                      [&](BoardBootstrap& ranks) { body(job, ranks); });
  };
  for (const std::size_t host_groups : {2, 3}) {
    on(host_groups, "host_groups_agree_on_one_order, " + std::to_string(host_groups),
       host_groups_agree_on_one_order);
  }
  alone("a_place_is_kept_until_all_have_taken_its_entry",
        a_place_is_kept_until_all_have_taken_its_entry);
  on(3, "ranks_and_host_groups_have_joined", ranks_and_host_groups_have_joined);
  on(3, "a_host_group_breaks_off", a_host_group_breaks_off);
  on(2, "structures_are_compared_between_host_groups", structures_are_compared_between_host_groups);
  on(2, "who_is_missing_elsewhere_is_known", who_is_missing_elsewhere_is_known);
  return report.finish();
}

}  // namespace
}  // namespace gradred::testing

// usage: host groups_test [part of a test's name]
int main(int argc, char** argv) { return gradred::testing::run_all(argc > 1 ? argv[1] : ""); }
