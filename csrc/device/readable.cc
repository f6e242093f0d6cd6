#include "device/readable.h"

#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string_view>

namespace gradred::device {
namespace {

using Address = std::uintptr_t;

// The kernel reads eight bytes and then rejects the unknown action; or it fails to read them.
bool is_word_readable(Address address) {
  constexpr int kNoSuchAction = -1;
  constexpr std::size_t kWord = 8;
  const auto* const word = reinterpret_cast<const void*>(address / kWord * kWord);
  return syscall(SYS_rt_sigprocmask, kNoSuchAction, word, nullptr, kWord) == 0 || errno != EFAULT;
}

// What the process has loaded, as of a number of libraries that it had loaded by then.
struct Libraries {
  unsigned long long loaded = 0;
  bool cuda = false;
};

// For dl_iterate_phdr(), which goes on while the result is 0.
int take_count(dl_phdr_info* library, std::size_t, void* libraries) {
  static_cast<Libraries*>(libraries)->loaded = library->dlpi_adds;
  return 1;
}

int find_cuda(dl_phdr_info* library, std::size_t, void* libraries) {
  if (std::string_view(library->dlpi_name).find("cuda") == std::string_view::npos) return 0;
  static_cast<Libraries*>(libraries)->cuda = true;
  return 1;
}

constexpr Address kPage = 4096;

// Input and result of a call are often a power of two apart. The multiplication spreads such pages,
// and there is room for two pages of each number.
bool is_page_readable(Address address) {
  constexpr int kNumberBits = 7;
  constexpr Address kSpread = 0x9e3779b97f4a7c15ULL;
  static std::array<std::array<std::atomic<Address>, 2>, 1U << kNumberBits> readable{};
  const Address page = address / kPage;
  auto& [last, before] = readable[page * kSpread >> (64 - kNumberBits)];
  const Address kept = last.load(std::memory_order_relaxed);
  if (kept == page || before.load(std::memory_order_relaxed) == page) return true;
  if (!is_word_readable(address)) return false;
  before.store(kept, std::memory_order_relaxed);
  last.store(page, std::memory_order_relaxed);
  return true;
}

}  // namespace

// Looks at the names of the libraries again only if the process has loaded one since.
bool may_have_driver() {
  static std::atomic<unsigned long long> looked_at{0};
  static std::atomic<bool> found{false};
  Libraries libraries;
  dl_iterate_phdr(take_count, &libraries);
  if (looked_at.load(std::memory_order_acquire) != libraries.loaded) {
    dl_iterate_phdr(find_cuda, &libraries);
    found.store(libraries.cuda, std::memory_order_relaxed);
    looked_at.store(libraries.loaded, std::memory_order_release);
  }
  return found.load(std::memory_order_relaxed);
}

bool is_readable(const void* pointer, std::size_t bytes) {
  const auto address = reinterpret_cast<Address>(pointer);
  return bytes == 0 || (is_word_readable(address) && is_word_readable(address + bytes - 1));
}

bool is_found_readable(const void* pointer, std::size_t bytes) {
  const auto address = reinterpret_cast<Address>(pointer);
  if (bytes == 0) return true;
  if (may_have_driver()) return is_readable(pointer, bytes);
  return is_page_readable(address) && is_page_readable(address + bytes - 1);
}

}  // namespace gradred::device
