// The notices of ranks about operations over messages: refusals, disagreements and failures. The
// MPI is in memory, and the ranks are objects, or threads.
#include "engine/notices/operation_log.h"

#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "expect.h"
#include "mpi_in_memory.h"

namespace gradred {
namespace {

using testing::expect;
using testing::MpiInMemory;

constexpr int kLargestTag = 32767, kMostLooks = 1000;

struct Rank {
  Rank(int number, int size, std::shared_ptr<NoticeCount> count = std::make_shared<NoticeCount>())
      : transport(0, number, size, TagSpace::make(0, kLargestTag)), notices(std::move(count)) {
    log.open(transport, notices);
  }
  MpiTransport transport;
  std::shared_ptr<NoticeCount> notices;
  OperationLog log;
};

class World {
 public:
  explicit World(int size) {
    for (int rank = 0; rank < size; ++rank) ranks_.push_back(std::make_unique<Rank>(rank, size));
  }
  ~World() {
    std::uint64_t sent = 0, received = 0;
    for (const auto& rank : ranks_) {
      for (const std::uint64_t some : rank->notices->sent(size())) sent += some;
      received += rank->notices->received();
    }
    expect(sent == received, "each notice is received and counted");
    expect(MpiInMemory::unread() == 0, "no message is left");
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const { return static_cast<int>(ranks_.size()); }
  // Returns the log of a new communicator of a rank, in place of the one before.
  OperationLog& renew(int rank) {
    auto& place = ranks_[static_cast<std::size_t>(rank)];
    const auto notices = place->notices;
    place = std::make_unique<Rank>(rank, size(), notices);
    return as(rank);
  }
  // The log of a rank, which this thread is from now on.
  OperationLog& as(int rank) {
    MpiInMemory::rank() = rank;
    return ranks_[static_cast<std::size_t>(rank)]->log;
  }
  // Each rank looks so often that nothing is left to do, unless a rank waits for something.
  void look() {
    for (int look = 0; look < kMostLooks; ++look) {
      for (int rank = 0; rank < size(); ++rank) as(rank).progress();
    }
  }
  void send_data(int from, int to, std::uint64_t number, unsigned slice = 0) {
    as(from);
    const std::vector<std::byte> data(100);
    mpi::Handle request = 0;
    const int tag = TagSpace::make(0, kLargestTag).tag(number) + static_cast<int>(slice);
    mpi::get().call.Isend(data.data(), 100, 1, to, tag, 0, &request);
  }

 private:
  std::vector<std::unique_ptr<Rank>> ranks_;
};

Signature sum_of(std::size_t count) {
  return make_signature(Kind::kAllreduce, Op::kSum, DType::kFloat32, count);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void a_refused_operation_leaves_nothing_behind() {
  World world(3);
  for (int rank = 0; rank < 3; ++rank) expect(world.as(rank).begin() == 0, "all count alike");
  world.send_data(1, 0, 0);
  world.send_data(2, 0, 0, 1);
  world.as(0).leave(0, "it is wrong");
  expect(world.as(0).refusal(0) == "it is wrong", "the reason, at once");
  world.look();
  for (int rank = 1; rank < 3; ++rank) {
    expect(world.as(rank).refusal(0) == "it is wrong", "the peers know it");
    expect(world.as(rank).waiting(0) == std::vector{0}, "and from whom");
  }
  expect(!world.as(0).settled(0) && !world.as(0).quiet(), "until the peers have left, too");
  world.send_data(1, 0, 0);  // a peer that does not know it yet goes on
  world.as(1).leave(0, "as rank 0 says");
  world.look();
  expect(!world.as(0).settled(0), "until all peers have");
  world.as(2).leave(0, "as rank 0 says");
  world.look();
  for (int rank = 0; rank < 3; ++rank) {
    expect(world.as(rank).settled(0) && world.as(rank).quiet(), "then nothing is left");
    expect(world.as(rank).progress(), "and nothing is to do");
    expect(world.as(rank).begin() == 1 && world.as(rank).begun() == 2, "operations go on");
  }
}

// Tags are used again.
void operations_wait_until_tags_are_free() {
  World world(2);
  const std::uint64_t window = TagSpace::make(0, kLargestTag).window();
  OperationLog& log = world.as(0);
  for (std::uint64_t number = 0; number <= window; ++number) log.begin();
  expect(log.may_start(window - 1) && !log.may_start(window), "as many as there are tags");
  log.end(0);
  expect(log.may_start(window), "one has ended");
  log.leave(1, "it is wrong");
  log.begin();
  expect(!log.may_start(window + 1), "messages of a refused one may still come");
  world.as(1).leave(1, "as rank 0 says");
  world.look();
  expect(world.as(0).may_start(window + 1), "until all have left it");
}

void ranks_that_wait_for_different_calls_learn_it() {
  World world(3);
  for (int rank = 0; rank < 3; ++rank) world.as(rank).begin();
  world.as(0).tell_waiting(0, sum_of(4));
  world.look();
  expect(world.as(1).waiting(0) == std::vector{0}, "the peers know that it waits");
  world.as(1).answer(0, sum_of(4));
  world.look();
  expect(!world.as(0).disagreement(0, sum_of(4)), "an equal call is no answer");
  world.as(2).answer(0, sum_of(5));
  world.as(2).answer(0, sum_of(5));  // once is enough
  world.look();
  const auto found = world.as(0).disagreement(0, sum_of(4));
  expect(found && contains(found->what(), "rank 0") && contains(found->what(), "rank 2"),
         found ? found->what() : "no answer");
  for (int rank = 0; rank < 3; ++rank) world.as(rank).end(0);
  world.look();
  expect(!world.as(0).disagreement(0, sum_of(4)), "forgotten with the operation");
  expect(world.as(1).waiting(0).empty(), "likewise");
}

// The tags of a communicator that was freed go to another one, and with them late answers.
void an_answer_to_another_communicator_counts_for_nothing() {
  World world(2);
  world.as(0).begin();
  world.as(1).begin();
  world.as(0).tell_waiting(0, sum_of(4));
  world.look();
  world.as(1).answer(0, sum_of(5));
  OperationLog& later = world.renew(0);
  later.begin();
  world.look();
  expect(!world.as(0).disagreement(0, sum_of(4)), "it was meant for the one before");
}

void a_failure_reaches_all_but_the_failed() {
  World world(4);
  world.as(1).fail({Failure::kPeerLost, "rank 3 has ended"}, {3});
  world.as(1).fail({Failure::kTimeout, "another one"}, {});
  world.look();
  for (const int rank : {0, 1, 2}) {
    const auto found = world.as(rank).failure();
    expect(found && found->kind == Failure::kPeerLost && found->text == "rank 3 has ended",
           found ? found->text : "rank " + std::to_string(rank) + " knows nothing");
  }
  expect(!world.as(3).has_failed(), "nobody tells the rank that has ended");
  world.as(2).note_failure({Failure::kTimeout, "later"});
  expect(world.as(2).failure()->text == "rank 3 has ended", "the first failure counts");
}

// Each rank leaves some operations, by chance of its own, and those that its peers have left.
void random_ranks_settle_all() {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kOperations = 40;
  World world(kRanks);
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&world, &ready, rank] {
      std::mt19937 draw(static_cast<unsigned>(rank));
      OperationLog& log = world.as(rank);
      std::set<std::uint64_t> left;  // nobody leaves twice
      for (std::uint64_t number = 0; number < kOperations; ++number) {
        log.begin();
        for (int peer = 0; peer < kRanks; ++peer) {
          if (peer != rank && draw() % 2 == 0) world.send_data(rank, peer, number, draw() % 2);
        }
        if (draw() % 4 == 0) {
          log.leave(number, "by chance");
          left.insert(number);
        }
        log.progress();
      }
      // All operations are refused in the end, as the data of no operation are read.
      for (std::uint64_t number = 0; number < kOperations; ++number) {
        if (!left.contains(number)) log.leave(number, log.refusal(number).value_or("at the end"));
      }
      bool was_ready = false;
      while (ready < kRanks) {
        if (log.progress() && !was_ready) {
          was_ready = true;
          ++ready;
        }
        std::this_thread::yield();
      }
      for (std::uint64_t number = 0; number < kOperations; ++number) {
        expect(log.settled(number), "operation " + std::to_string(number));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  world.look();
}

}  // namespace
}  // namespace gradred

int main() {
  gradred::testing::MpiInMemory::install();
  gradred::a_refused_operation_leaves_nothing_behind();
  gradred::operations_wait_until_tags_are_free();
  gradred::ranks_that_wait_for_different_calls_learn_it();
  gradred::an_answer_to_another_communicator_counts_for_nothing();
  gradred::a_failure_reaches_all_but_the_failed();
  gradred::random_ranks_settle_all();
  return gradred::testing::report("operation_log_test");
}
