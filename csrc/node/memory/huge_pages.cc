#include "node/memory/huge_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>

#include "node/memory/memory_file.h"

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

// What the kernel shows of this process's small pages, in /proc/self/pagemap. A page that the
// program has only read, or not even that, has no memory of its own: the kernel shows its zeros.
// Huge pages would give it some, and to a page that is shared with a forked child as well.
class PageMap {
 public:
  PageMap() : file_(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {}

  // Returns whether all pages from `address` on are private memory of this process alone.
  bool all_own(std::uintptr_t address, std::size_t bytes) const {
    static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::array<std::uint64_t, 512> entries;
    std::size_t number = address / page;
    for (std::size_t left = bytes / page; left > 0;) {
      const auto some = std::span(entries).first(std::min(left, entries.size()));
      const auto offset = static_cast<off_t>(number * sizeof(std::uint64_t));
      const ssize_t got = pread(file_.fd(), some.data(), some.size_bytes(), offset);
      if (got != static_cast<ssize_t>(some.size_bytes()) || !std::ranges::all_of(some, is_own)) {
        return false;
      }
      number += some.size();
      left -= some.size();
    }
    return true;
  }

 private:
  static bool is_own(std::uint64_t entry) {
    constexpr auto bit = [](unsigned place) { return std::uint64_t{1} << place; };
    constexpr std::uint64_t kPresent = bit(63), kFileOrShared = bit(61), kMappedOnce = bit(56);
    constexpr std::uint64_t kMask = kPresent | kFileOrShared | kMappedOnce;
    return (entry & kMask) == (kPresent | kMappedOnce);
  }

  File file_;
};

// Puts memory into huge pages, up to some milliseconds for each. If the kernel cannot, the memory
// stays as it is. One call for a run of pages, as each call waits for all cores.
void collapse_own(std::uintptr_t from, std::uintptr_t to, std::size_t huge) {
  const PageMap pages;
  for (std::uintptr_t begin = from; begin < to; begin += huge) {
    std::uintptr_t end = begin;
    while (end < to && pages.all_own(end, huge)) end += huge;
    if (begin == end) continue;
    madvise(reinterpret_cast<void*>(begin), end - begin, kMadvCollapse);
    begin = end;  // the page at `end` has just been found not to be this process's own
  }
}

// Puts a slice of an array into huge pages.
void collapse(const std::byte* array, std::size_t bytes, std::size_t number) {
  static const std::size_t huge = bytes_of_huge_page();
  if (huge == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(array);
  const std::uintptr_t first = (begin + huge - 1) / huge, end = (begin + bytes) / huge;
  if (first >= end) return;
  const std::uintptr_t pages = (end - first + kSlices - 1) / kSlices;
  const std::uintptr_t from = first + number * pages, to = std::min(from + pages, end);
  if (from < to) collapse_own(from * huge, to * huge, huge);
}

}  // namespace

void HugePages::remember(const Seen& seen) {
  if (seen_.size() < kRemembered) return seen_.push_back(seen);
  seen_[next_] = seen;
  next_ = (next_ + 1) % kRemembered;
}

void HugePages::use(const std::byte* array, std::size_t bytes) {
  if (bytes < kLeast) return;
  const auto known = std::ranges::find_if(
      seen_, [&](const Seen& seen) { return seen.array == array && seen.bytes == bytes; });
  if (known == seen_.end()) {
    remember({.array = array, .bytes = bytes, .operations = 1});
  } else if (known->operations < kWaits + kSlices) {
    const unsigned operation = known->operations++;
    if (operation >= kWaits) collapse(array, bytes, operation - kWaits);
  }
}

}  // namespace gradred
