#include "device/streams/pinned_memory.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

namespace gradred::device {
namespace {

// The limit unless a call takes more.
constexpr std::size_t kMostSpareBytes = std::size_t{256} << 20;
constexpr std::size_t kMebibyte = std::size_t{1} << 20;

// Rounds to few different lengths, so that memory pinned for one call fits others.
std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kLeast = 4096;
  if (bytes <= kMebibyte) return std::bit_ceil(std::max(bytes, kLeast));
  return (bytes + kMebibyte - 1) / kMebibyte * kMebibyte;
}

}  // namespace

std::byte* PinnedMemory::allocate(std::size_t bytes) {
  if (std::byte* const pinned = allocate_pinned(bytes)) return pinned;
  auto plain = std::make_unique_for_overwrite<std::byte[]>(bytes);
  const std::lock_guard lock(mutex_);
  plain_.emplace(plain.get(), bytes);
  plain_count_ = plain_.size();
  return plain.release();
}

std::byte* PinnedMemory::allocate_pinned(std::size_t bytes) {
  const std::size_t length = rounded(bytes);
  catch_up();
  if (std::byte* const spare = take_spare(length)) return spare;
  std::byte* made = nullptr;
  if (!gate_.while_none_is_open([&] { made = pin(length); })) {
    const std::lock_guard lock(mutex_);
    const auto all = std::accumulate(wanted_.begin(), wanted_.end(), spare_bytes_ + length);
    if (all <= most_spare_bytes(length)) wanted_.push_back(length);
  }
  return made;
}

bool PinnedMemory::is_plain(const void* address) {
  if (plain_count_.load(std::memory_order_relaxed) == 0) return false;
  const auto* const at = static_cast<const std::byte*>(address);
  const std::lock_guard lock(mutex_);
  const auto behind = plain_.upper_bound(at);
  if (behind == plain_.begin()) return false;
  const auto [begin, length] = *std::prev(behind);
  return at < begin + length;
}

std::byte* PinnedMemory::take_spare(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = spare_.lower_bound(bytes);
  if (found == spare_.end() || found->first > 2 * bytes) return nullptr;
  const auto [length, address] = *found;
  in_use_[address] = length;
  spare_bytes_ -= length;
  spare_.erase(found);
  return address;
}

void PinnedMemory::catch_up() {
  std::vector<Dropped> dropped;  // freed without the lock
  std::vector<std::size_t> wanted;
  {
    const std::lock_guard lock(mutex_);
    dropped.swap(dropped_);
    wanted.swap(wanted_);
  }
  if (dropped.empty() && wanted.empty()) return;
  const auto all = [&] {
    dropped.clear();
    try {
      for (const std::size_t bytes : wanted) release(pin(bytes));
    } catch (const DriverError&) {  // a call that needs the memory reports the error
    }
  };
  if (gate_.while_none_is_open(all)) return;
  const std::lock_guard lock(mutex_);
  std::ranges::move(dropped, std::back_inserter(dropped_));
  std::ranges::move(wanted, std::back_inserter(wanted_));
}

void PinnedMemory::free_later(ImportedAllocation imported) noexcept {
  if (imported.get() == 0) return;
  {
    const std::lock_guard lock(mutex_);
    dropped_.emplace_back(std::move(imported));
  }
  catch_up();
}

std::byte* PinnedMemory::pin(std::size_t bytes) {
  const ScopedContext scope = context_.scope();
  PinnedAllocation made(context_.driver(), bytes);
  auto* const address = static_cast<std::byte*>(made.get());
  const std::lock_guard lock(mutex_);
  pinned_[address] = std::move(made);
  in_use_[address] = bytes;
  longest_ = std::max(longest_, bytes);
  return address;
}

// If there is too much spare memory, drops the longest allocations. They are freed later: freeing
// may keep the driver until the device is idle, and the device may be waiting for this thread.
void PinnedMemory::release(std::byte* address) noexcept {
  const std::lock_guard lock(mutex_);
  if (plain_.erase(address) > 0) {
    plain_count_ = plain_.size();
    delete[] address;
    return;
  }
  const auto used = in_use_.extract(address);
  const auto last = spare_.emplace(used.mapped(), address);
  spare_bytes_ += used.mapped();
  while (spare_bytes_ > most_spare_bytes()) {
    auto longest = std::prev(spare_.end());
    if (longest == last) --longest;  // the next call most likely needs the same length
    spare_bytes_ -= longest->first;
    dropped_.push_back(std::move(pinned_.extract(longest->second).mapped()));
    spare_.erase(longest);
  }
}

// Pinning memory takes many times as long as copying it. So the limit leaves room for twice what
// the longest call takes.
std::size_t PinnedMemory::most_spare_bytes(std::size_t next) const {
  return std::max(kMostSpareBytes, 2 * std::max(longest_, next));
}

}  // namespace gradred::device
