// How rank 0 chooses between the two kinds of stores for data that peers read, tested without
// ranks.
#include "node/paths/stores.h"

#include <string>

#include "expect.h"

namespace gradred::testing {
namespace {

// Runs `operations` of this size, each of which takes the time that `ns` returns for the kind of
// store. Returns how many wrote past the caches.
template <class Ns>
int carry_out(FasterStores& stores, std::size_t bytes, int operations, Ns ns) {
  int past = 0;
  for (int i = 0; i < operations; ++i) {
    const bool now = stores.past(bytes);
    const bool measures = stores.measures(bytes);
    past += now ? 1 : 0;
    const std::uint8_t next = stores.decide(bytes);
    if (measures) stores.took(bytes, ns(now));
    stores.follow(next);
  }
  return past;
}

void both_are_tried_and_the_faster_one_is_taken() {
  for (const std::size_t bytes : {2048U, 5000U, 40'000U, 1U << 20, 1U << 30}) {
    for (const bool past_is_faster : {false, true}) {
      FasterStores stores;
      const auto ns = [&](bool past) { return past == past_is_faster ? 1000 : 2000; };
      carry_out(stores, bytes, 10, ns);
      const int past = carry_out(stores, bytes, 100, ns);
      expect(past == (past_is_faster ? 100 : 0), "the faster one");
    }
  }
}

void a_change_is_noticed() {
  FasterStores stores;
  carry_out(stores, 8192, 500, [](bool past) { return past ? 2000 : 1000; });
  expect(!stores.past(8192), "the ordinary way");
  carry_out(stores, 8192, 1000,
            [](bool past) { return past ? 2000 : 30'000; });  // a rank has moved to another core
  expect(stores.past(8192), "past the caches");
}

void sizes_are_apart() {
  FasterStores stores;
  carry_out(stores, 4096, 50, [](bool past) { return past ? 2000 : 1000; });
  carry_out(stores, 8192, 50, [](bool past) { return past ? 1000 : 2000; });
  expect(!stores.past(5000) && stores.past(9000), "each power of two has its own");
}

void longer_ones_that_nobody_has_tried_follow() {
  FasterStores stores;
  expect(!stores.past(1 << 20), "nothing is known");
  carry_out(stores, 40'000, 50, [](bool past) { return past ? 1000 : 2000; });
  expect(stores.past(1 << 20) && !stores.past(4096), "as the longest one that is known");
}

void trials_become_rare_where_the_difference_is_clear() {
  FasterStores stores;
  const auto ns = [](bool past) { return past ? 1000 : 5000; };
  carry_out(stores, 4096, 10'000, ns);
  const int ordinary = 10'000 - carry_out(stores, 4096, 10'000, ns);
  expect(ordinary > 0 && ordinary <= 12, "of ten thousand: " + std::to_string(ordinary));
}

void short_data_go_the_ordinary_way() {
  FasterStores stores;
  for (const std::size_t bytes : {0U, 49U, 2047U}) expect(!stores.past(bytes), "below 2 KiB");
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  both_are_tried_and_the_faster_one_is_taken();
  a_change_is_noticed();
  sizes_are_apart();
  longer_ones_that_nobody_has_tried_follow();
  trials_become_rare_where_the_difference_is_clear();
  short_data_go_the_ordinary_way();
  return report("stores_test");
}
