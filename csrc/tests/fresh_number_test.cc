// Numbers that identify things: in one process, in several threads, and in forked children.
#include "base/fresh_number.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <set>
#include <thread>
#include <vector>

#include "expect.h"

namespace gradred {
namespace {

using testing::expect;

constexpr std::size_t kMany = 20'000;

using Numbers = std::array<std::uint64_t, kMany>;

void draw(Numbers& into) {
  for (std::uint64_t& number : into) number = fresh_number();
}

void threads_get_different_numbers() {
  std::vector<Numbers> drawn(4);
  std::vector<std::thread> threads;
  threads.reserve(drawn.size());
  for (Numbers& of_one : drawn) threads.emplace_back([&of_one] { draw(of_one); });
  for (std::thread& thread : threads) thread.join();
  std::set<std::uint64_t> all;
  for (const Numbers& of_one : drawn) all.insert(of_one.begin(), of_one.end());
  expect(all.size() == drawn.size() * kMany, "no number comes twice");
  expect(!all.contains(0), "0 is no number");
}

void a_forked_child_gets_others_than_its_parent() {
  std::array<int, 2> ends{};
  expect(pipe(ends.data()) == 0, "a pipe");
  const pid_t child = fork();
  const std::uint64_t next = fresh_number();
  if (child == 0) _exit(write(ends[1], &next, sizeof next) == sizeof next ? 0 : 1);
  std::uint64_t of_child = next;
  expect(read(ends[0], &of_child, sizeof of_child) == sizeof of_child, "the child's number");
  expect(of_child != next, "parent and child get different numbers");
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace gradred

int main() {
  gradred::threads_get_different_numbers();
  gradred::a_forked_child_gets_others_than_its_parent();
  return gradred::testing::report("fresh_number_test");
}
