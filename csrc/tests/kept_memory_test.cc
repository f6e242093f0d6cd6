// Test of the common limit for memory that all communicators keep for reuse.
#include "families/messages/kept_memory.h"

#include <cstddef>
#include <list>

#include "expect.h"

namespace gradred {
namespace {

using testing::expect;

constexpr std::size_t kPart = std::size_t{16} << 20;

void all_together_keep_no_more_than_the_limit() {
  std::list<KeptMemory> owners;
  for (std::size_t kept = 0; kept < KeptMemory::kMost; kept += kPart) {
    expect(owners.emplace_back().keep(kPart), "there is room");
  }
  KeptMemory late;
  expect(!late.keep(1), "there is none left");
  expect(owners.front().keep(kPart), "what is kept may stay");
  owners.pop_front();
  expect(late.keep(kPart), "what another one has given back can be had");
  expect(!owners.front().keep(2 * kPart), "there is no room for more");
  expect(owners.back().keep(kPart), "who was refused has given back what it had");
}

void nothing_stays_taken_when_all_have_gone() {
  KeptMemory one;
  expect(one.keep(KeptMemory::kMost), "those before have gone");
  one.give_up();
  expect(one.keep(KeptMemory::kMost), "it has given all back");
}

}  // namespace
}  // namespace gradred

int main() {
  gradred::all_together_keep_no_more_than_the_limit();
  gradred::nothing_stays_taken_when_all_have_gone();
  return gradred::testing::report("kept_memory_test");
}
