// Test of the memory that results of calls take again.
#include "memory/kept_pages.h"

#include <sys/resource.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <vector>

#include "expect.h"

namespace gradred {
namespace {

using testing::expect;

constexpr std::size_t kMiB = std::size_t{1} << 20;

void memory_that_was_let_go_serves_the_next_result_of_its_length() {
  KeptPages pages;
  void* const first = pages.take(3 * kMiB);
  void* const second = pages.take(3 * kMiB);
  expect(first != second, "what is in use is not given twice");
  std::memset(first, 7, 3 * kMiB);
  pages.give(first);
  expect(pages.kept_bytes() == 3 * kMiB, "it is kept");
  expect(pages.take(kMiB) != first, "a much shorter result does not take it");
  expect(pages.take(4 * kMiB) != first, "a longer one cannot");
  expect(pages.take(3 * kMiB - 100) == first, "one that is hardly shorter does");
  expect(pages.room(first) == 3 * kMiB, "its room is known");
  expect(pages.kept_bytes() == 0, "it is in use again");
}

void so_much_is_kept_and_no_more() {
  KeptPages pages;
  std::vector<void*> all(9);
  for (void*& one : all) one = pages.take(KeptPages::kMost / 8);
  for (void* const one : all) pages.give(one);
  expect(pages.kept_bytes() == KeptPages::kMost, "the oldest has gone");
  pages.give(pages.take(2 * KeptPages::kMost));
  expect(pages.kept_bytes() == KeptPages::kMost, "what is longer is not kept, and others stay");
}

void what_nobody_asks_for_again_goes() {
  KeptPages pages;
  pages.give(pages.take(8 * kMiB));
  for (std::uint64_t i = 0; i < KeptPages::kForgotten; ++i) pages.give(pages.take(kMiB));
  expect(pages.kept_bytes() == 9 * kMiB, "it is kept for a while");
  pages.give(pages.take(kMiB));
  expect(pages.kept_bytes() == kMiB, "it has gone");
}

void what_is_kept_goes_where_memory_is_short() {
  KeptPages pages;
  pages.give(pages.take(100 * kMiB));
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  std::size_t mapped = 0;
  std::ifstream("/proc/self/statm") >> mapped;
  const rlimit tight{mapped * 4096 + 40 * kMiB, before.rlim_max};
  setrlimit(RLIMIT_AS, &tight);
  void* const longer = pages.take(120 * kMiB);
  setrlimit(RLIMIT_AS, &before);
  expect(longer != nullptr, "the pages of the one before make room");
  expect(pages.kept_bytes() == 0, "they have gone");
}

void what_cannot_be_had_is_refused() {
  KeptPages pages;
  expect(pages.take(~std::size_t{0}) == nullptr, "no memory has so many bytes");
  expect(pages.take(std::size_t{1} << 60) == nullptr, "nor so many");
}

}  // namespace
}  // namespace gradred

int main() {
  gradred::memory_that_was_let_go_serves_the_next_result_of_its_length();
  gradred::so_much_is_kept_and_no_more();
  gradred::what_nobody_asks_for_again_goes();
  gradred::what_is_kept_goes_where_memory_is_short();
  gradred::what_cannot_be_had_is_refused();
  return gradred::testing::report("kept_pages_test");
}
