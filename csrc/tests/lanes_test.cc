// The accounts that the ranks of a communicator keep of its lanes: equal on all of them, in
// whatever order each rank lets lanes go.
#include "comm/lanes.h"

#include <array>
#include <random>
#include <vector>

#include "expect.h"

namespace gradred {
namespace {

using testing::expect;

struct Lane final : Owner {
  explicit Lane(int number) : id(number) { ++alive; }
  ~Lane() override { --alive; }
  static inline int alive = 0;

  const int id;
  bool failed = false;
};

constexpr std::size_t kRanks = 3;

// One call of Allreduce_init on all ranks, in one process.
class Ranks {
 public:
  using Held = std::shared_ptr<Lane>;

  // By rank, the lane that the call gets.
  std::vector<Held> init(std::size_t bytes) {
    const LaneShape shape{.at_most = LaneShape::class_of(bytes)};
    std::vector<CommLanes::Report> all;
    for (CommLanes& of_one : accounts_) all.push_back(of_one.report());
    std::vector<Held> got;
    const int id = made_;
    for (CommLanes& of_one : accounts_) {
      of_one.receive(all);
      std::shared_ptr<Owner> lane = of_one.take(shape);
      if (lane == nullptr) {
        lane = of_one.add(shape, std::make_unique<Lane>(id));
        made_ = id + 1;
      }
      got.push_back(std::static_pointer_cast<Lane>(lane));
    }
    for (const Held& one : got) expect(one->id == got.front()->id, "all ranks get the same lane");
    return got;
  }
  int made() const { return made_; }

 private:
  static CommLanes::Functions functions() {
    return {[](Owner* last) { delete last; },
            [](Owner& one) { return static_cast<Lane&>(one).failed; }};
  }

  std::array<CommLanes, kRanks> accounts_{CommLanes(functions()), CommLanes(functions()),
                                          CommLanes(functions())};
  int made_ = 0;
};

void a_lane_is_taken_again_once_all_ranks_have_let_it_go() {
  Ranks ranks;
  auto first = ranks.init(8);
  first[0].reset();
  first[2].reset();
  expect(ranks.init(8)[0]->id == 1, "rank 1 still uses the first");
  first[1].reset();
  expect(ranks.init(8)[0]->id == 0, "nobody uses it any more");
}

void a_call_gets_the_smallest_lane_that_is_large_enough() {
  Ranks ranks;
  std::vector<std::vector<Ranks::Held>> all;
  for (const std::size_t bytes : {50'000U, 5'000U, 100U}) all.push_back(ranks.init(bytes));
  all.clear();
  expect(ranks.init(6'000)[0]->id == 1, "the one for 8 KiB");
  auto small = ranks.init(8);
  expect(small[0]->id == 2, "the one for 1 KiB");
  auto next = ranks.init(8);
  expect(next[0]->id == 1, "a larger one, as the small one is in use");
  auto large = ranks.init(100'000);
  expect(large[0]->id == 3, "none is large enough");
}

void a_failed_lane_ends_and_is_not_taken() {
  Ranks ranks;
  auto lanes = ranks.init(8);
  lanes[1]->failed = true;
  lanes.clear();
  expect(ranks.init(8)[0]->id == 1, "the failed one is left alone");
  expect(Lane::alive == kRanks, "and has ended");
}

void many_lanes_come_and_go() {
  Ranks ranks;
  std::mt19937 draw(1);
  std::vector<std::vector<Ranks::Held>> held(kRanks);
  for (int turn = 0; turn < 3000; ++turn) {
    const auto got = ranks.init(std::size_t{8} << draw() % 14);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      std::vector<Ranks::Held>& own = held[rank];
      own.push_back(got[rank]);
      while (own.size() > 40) {  // in an order of its own
        own.erase(own.begin() + static_cast<std::ptrdiff_t>(draw() % 20));
      }
    }
  }
  expect(ranks.made() < 1000, "most calls take lanes of others");
  held.clear();
  for (int turn = 0; turn < 100; ++turn) ranks.init(1 << 20);
  const int before = ranks.made();
  for (int turn = 0; turn < 100; ++turn) ranks.init(1 << 20);
  expect(ranks.made() == before, "all have been reported by now");
}

void lanes_in_use_outlive_the_account() {
  std::vector<Ranks::Held> last;
  {
    Ranks ranks;
    last = ranks.init(8);
    ranks.init(8);
  }
  expect(Lane::alive == kRanks, "those in use, and no others");
  last.clear();
  expect(Lane::alive == 0, "none is left");
}

}  // namespace
}  // namespace gradred

int main() {
  gradred::a_lane_is_taken_again_once_all_ranks_have_let_it_go();
  gradred::a_call_gets_the_smallest_lane_that_is_large_enough();
  gradred::a_failed_lane_ends_and_is_not_taken();
  gradred::many_lanes_come_and_go();
  gradred::lanes_in_use_outlive_the_account();
  gradred::testing::expect(gradred::Lane::alive == 0, "all have ended");
  return gradred::testing::report("lanes_test");
}
