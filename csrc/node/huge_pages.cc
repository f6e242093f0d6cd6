#include "node/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

namespace gradred {
namespace {

constexpr unsigned kWaits = 2;       // operations; arrays that do not come again are left alone
constexpr std::size_t kSlices = 16;  // of an array, so that no operation pays for all its pages
constexpr std::size_t kLeast = std::size_t{2} << 20;  // no system has smaller huge pages
constexpr int kMadvCollapse = 25;  // MADV_COLLAPSE of Linux 6.1, which older headers lack

// Bytes of a huge page; 0 if there are none or the administrator forbids them.
std::size_t bytes_of_huge_page() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  std::string enabled;
  std::getline(std::ifstream(folder + "enabled"), enabled);
  std::size_t bytes = 0;
  std::ifstream(folder + "hpage_pmd_size") >> bytes;
  return enabled.find("[never]") == std::string::npos ? bytes : 0;
}

// Puts a slice into huge pages, which takes up to some milliseconds for each. If the kernel cannot,
// the slice stays as it is.
void collapse(const std::byte* array, std::size_t bytes, std::size_t number) {
  static const std::size_t huge = bytes_of_huge_page();
  if (huge == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(array);
  const std::uintptr_t first = (begin + huge - 1) / huge, end = (begin + bytes) / huge;
  if (first >= end) return;
  const std::uintptr_t pages = (end - first + kSlices - 1) / kSlices;
  const std::uintptr_t from = first + number * pages, to = std::min(from + pages, end);
  if (from < to) madvise(reinterpret_cast<void*>(from * huge), (to - from) * huge, kMadvCollapse);
}

}  // namespace

void HugePages::use(const std::byte* array, std::size_t bytes) noexcept {
  if (bytes < kLeast) return;
  const auto known = std::ranges::find_if(
      seen_, [&](const Seen& seen) { return seen.array == array && seen.bytes == bytes; });
  if (known == seen_.end()) {
    seen_[next_] = {.array = array, .bytes = bytes, .operations = 1};
    next_ = (next_ + 1) % kRemembered;
  } else if (known->operations < kWaits + kSlices) {
    const unsigned operation = known->operations++;
    if (operation >= kWaits) collapse(array, bytes, operation - kWaits);
  }
}

}  // namespace gradred
