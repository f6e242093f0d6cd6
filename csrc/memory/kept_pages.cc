#include "memory/kept_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>

namespace gradred {
namespace {

constexpr std::size_t kGranule = std::size_t{64} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// A block serves a result that leaves at most an eighth of it unused.
constexpr std::size_t kUnusedShare = 8;

// NumPy asks for huge pages from this length on, unless this variable forbids it.
bool wants_huge_pages(std::size_t bytes) {
  static const bool allowed = [] {
    const char* const given = std::getenv("NUMPY_MADVISE_HUGEPAGE");
    return given == nullptr || std::string_view(given) != "0";
  }();
  return allowed && bytes >= 2 * kHugePage;
}

void* mapped(std::size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (wants_huge_pages(bytes)) madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

}  // namespace

KeptPages& KeptPages::of_process() {
  static auto* const pages = new KeptPages;  // arrays may outlive static objects
  return *pages;
}

void* KeptPages::take(std::size_t bytes) {
  const std::size_t wanted = (std::max(bytes, std::size_t{1}) + kGranule - 1) / kGranule * kGranule;
  if (wanted < bytes) return nullptr;
  const std::lock_guard lock(mutex_);
  ++results_;
  void* const again = kept(wanted);
  drop_forgotten();
  if (again != nullptr) return again;
  void* data = mapped(wanted);
  if (data == nullptr && !kept_.empty()) {  // what is kept may be what is missing
    drop_all();
    data = mapped(wanted);
  }
  if (data == nullptr) return nullptr;
  try {
    used_.emplace(data, wanted);
    kept_.reserve(kept_.size() + used_.size());  // give() needs no memory
  } catch (const std::bad_alloc&) {
    used_.erase(data);
    munmap(data, wanted);
    return nullptr;
  }
  return data;
}

// The block that was let go last may still be in the caches.
void* KeptPages::kept(std::size_t bytes) {
  const auto fits = [bytes](const Block& block) {
    return block.bytes >= bytes && block.bytes - bytes <= block.bytes / kUnusedShare;
  };
  const auto last = std::find_if(kept_.rbegin(), kept_.rend(), fits);
  if (last == kept_.rend()) return nullptr;
  const Block block = *last;
  try {
    used_.emplace(block.data, block.bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  kept_.erase(std::next(last).base());
  kept_bytes_ -= block.bytes;
  return block.data;
}

void KeptPages::drop_forgotten() {
  while (!kept_.empty() && (kept_bytes_ > kMost || results_ - kept_.front().given > kForgotten)) {
    kept_bytes_ -= kept_.front().bytes;
    munmap(kept_.front().data, kept_.front().bytes);
    kept_.erase(kept_.begin());
  }
}

void KeptPages::drop_all() {
  for (const Block& block : kept_) munmap(block.data, block.bytes);
  kept_.clear();
  kept_bytes_ = 0;
}

void KeptPages::give(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(data);
  const std::size_t bytes = found->second;
  used_.erase(found);
  if (bytes > kMost) {
    munmap(data, bytes);
    return;
  }
  kept_.push_back({data, bytes, results_});
  kept_bytes_ += bytes;
  drop_forgotten();
}

std::size_t KeptPages::room(void* data) {
  const std::lock_guard lock(mutex_);
  return used_.at(data);
}

std::size_t KeptPages::kept_bytes() {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace gradred
