// Messages of many lengths among all ranks, in a different order on each rank, and messages that
// are abandoned.
#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/errors.h"
#include "comm/mailboxes.h"
#include "program.h"

namespace gradred::testing {
namespace {

using Bytes = std::vector<std::byte>;
using Dice = std::minstd_rand;

constexpr std::array<std::size_t, 9> kLengths = {0,      1,      31,      4'000,    16'384,
                                                 16'385, 70'001, 131'072, 1'000'003};
constexpr int kMessages = 6;  // for each pair of ranks and direction

// The content of a message, known to both ranks.
Bytes content_of(int from, int to, int number, unsigned seed) {
  Dice dice(seed + static_cast<unsigned>(1000 * from + 50 * to + number + 1));
  Bytes made(kLengths[dice() % kLengths.size()]);
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::byte>(dice() >> 8);
  return made;
}
int tag_of(int from, int to, int number) { return (from + 2 * to + number / 2) % 3; }

struct One {
  bool sends;
  int peer, number;
  Bytes bytes{}, expected{};
  std::shared_ptr<MessageOperation> operation{};
};

// Messages of one peer and direction keep their order. Messages with different tags are
// independent.
std::vector<One> messages_of(int rank, int size, unsigned seed) {
  std::vector<One> all;
  for (int peer = 0; peer < size; ++peer) {
    for (int number = 0; peer != rank && number < kMessages; ++number) {
      all.push_back({true, peer, number, content_of(rank, peer, number, seed)});
      One got{false, peer, number};
      got.expected = content_of(peer, rank, number, seed);
      got.bytes.resize(got.expected.size());
      all.push_back(std::move(got));
    }
  }
  Dice dice(seed + static_cast<unsigned>(rank));
  std::ranges::shuffle(all, dice);
  std::ranges::stable_sort(all, {}, [](const One& one) { return one.number; });
  return all;
}

std::size_t exchange(Mailboxes& boxes, int size, unsigned seed) {
  std::vector<One> all = messages_of(boxes.rank(), size, seed);
  for (One& one : all) {
    const int tag = one.sends ? tag_of(boxes.rank(), one.peer, one.number)
                              : tag_of(one.peer, boxes.rank(), one.number);
    one.operation = one.sends ? boxes.send(one.bytes.data(), one.bytes.size(), one.peer, tag)
                              : boxes.receive(one.bytes.data(), one.bytes.size(), one.peer, tag);
  }
  PlainWait hook;
  Dice dice(seed + 7 * static_cast<unsigned>(boxes.rank()));
  std::ranges::shuffle(all, dice);
  for (One& one : all) {
    wait_for(*one.operation, hook);
    if (one.sends) continue;
    expect(one.bytes == one.expected, "a message has other bytes");
    expect(one.operation->source() == one.peer, "a message comes from another rank");
  }
  return all.size();
}

// Abandons messages to and from the next rank. The next rank must still receive the later messages.
std::size_t give_up(Mailboxes& boxes, int size) {
  constexpr std::size_t kLong = 1'000'000;
  const int next = (boxes.rank() + 1) % size, before = (boxes.rank() + size - 1) % size;
  const auto reason = std::make_exception_ptr(TransportError("given up"));
  Bytes sent(kLong, std::byte{3}), got(kLong), second(kLong);
  const auto given_up = boxes.receive(got.data(), 7, before, 9);  // no rank sends it
  given_up->abandon(reason);
  expect(given_up->ended() && given_up->failed(), "a receive goes on after it was given up");
  const auto left = boxes.send(sent.data(), kLong, next, 5);
  if (!left->ended()) left->abandon(reason);  // its header has been sent
  const auto after = boxes.send(sent.data(), 100, next, 5);
  PlainWait hook;
  wait_for(*boxes.receive(got.data(), kLong, before, 5), hook);
  wait_for(*boxes.receive(second.data(), 100, MessageOperation::kAnyone, 5), hook);
  wait_for(*after, hook);
  expect(got == sent && second[99] == std::byte{3}, "a message after one given up has other bytes");
  expect(!left->holds_memory(), "what was given up holds memory though it has been read");
  return 4;
}

}  // namespace

void send_messages(const Library& mpi) {
  const mpi::Handle own = mpi.duplicate(mpi::get().is.comm_world);
  std::size_t checks = 0;
  int rank = 0, size = 0;
  {
    const auto comm = Communicator::of(own);
    rank = comm->rank();
    size = comm->size();
    PlainWait hook;
    const auto boxes = Mailboxes::create(comm, hook);
    expect(boxes != nullptr, "the ranks share no memory");
    for (unsigned seed = 0; seed < 20; ++seed) checks += exchange(*boxes, size, 100 * seed);
    if (size > 1) checks += give_up(*boxes, size);
    boxes->close();
  }
  mpi.free(own);
  std::printf("rank %d of %d: %zu checks passed\n", rank, size, checks);
  std::fflush(stdout);
}

}  // namespace gradred::testing
