// Copies of bytes between places that lie in any way to each other.
#include "base/copy_bytes.h"

#include <algorithm>
#include <vector>

#include "expect.h"
#include "node/memory/copy.h"

namespace gradred::testing {
namespace {

constexpr std::size_t kPage = 4096;

void slow_are_targets_1_to_31_bytes_behind_within_a_page() {
  const std::byte* const source = nullptr;
  std::size_t slow = 0;
  for (std::uintptr_t ahead = 0; ahead < kPage; ++ahead) {
    const auto* const target = reinterpret_cast<const std::byte*>(7 * kPage + ahead);
    const bool found = string_copy_is_slow(target, source);
    expect(found == (ahead >= 1 && ahead <= 31), "as measured on a processor");
    slow += found ? 1 : 0;
  }
  expect(slow == 31, "no other");
}

// Each byte of the target is as in the source, and those around it are as before.
template <class Copy>
void is_right(Copy copy) {
  std::vector<std::byte> from(6 * kPage), to(6 * kPage);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(1 + i % 251);
  for (const std::size_t ahead : {0U, 1U, 8U, 16U, 31U, 32U, 64U, 4095U}) {
    for (const std::size_t begin : {0U, 5U}) {
      for (const std::size_t bytes : {0U, 7U, 1023U, 1024U, 1025U, 1087U, 4096U, 9000U}) {
        std::ranges::fill(to, std::byte{});
        // `to` and `from` may lie in any way to each other, so it begins where it lies so.
        const auto gap = reinterpret_cast<std::uintptr_t>(from.data()) -
                         reinterpret_cast<std::uintptr_t>(to.data());
        const std::size_t at = (gap + begin + ahead) % kPage;
        copy(to.data() + at, from.data() + begin, bytes);
        const auto* const got = to.data() + at;
        expect(std::equal(got, got + bytes, from.data() + begin), "all bytes");
        expect(std::all_of(to.data(), to.data() + at, [](std::byte b) { return b == std::byte{}; }),
               "nothing before them");
        expect(std::all_of(to.data() + at + bytes, to.data() + to.size(),
                           [](std::byte b) { return b == std::byte{}; }),
               "nothing after them");
      }
    }
  }
}

}  // namespace
}  // namespace gradred::testing

int main() {
  using namespace gradred::testing;
  slow_are_targets_1_to_31_bytes_behind_within_a_page();
  is_right(gradred::copy_bytes);
  is_right(gradred::copy_by_words);
  is_right(gradred::copy_out);
  is_right(gradred::copy_of_results(false));
  return report("copy_bytes_test");
}
