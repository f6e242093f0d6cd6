#include "device/ipc/exported.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/errors.h"
#include "device/driver/pointer_cache.h"

namespace gradred::device {
namespace {

constexpr std::size_t kUnit = 512;  // arrays begin at multiples of this, like those of cudaMalloc
// The driver maps and exports memory in units of this size. An allocation that shared a unit with
// another one would export that one, too.
constexpr std::size_t kMapped = std::size_t{2} << 20;
// Small arrays share a block of this size.
constexpr std::size_t kLeastBlock = std::size_t{32} << 20;
// Released bytes beyond which allocate() waits for the device.
constexpr std::size_t kMostReleased = 4 * kLeastBlock;

std::size_t up_to(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

std::size_t ExportedMemory::rounded(std::size_t bytes) {
  return up_to(std::max<std::size_t>(bytes, 1), kUnit);
}

// The shortest gap that is long enough. Gaps that peers can read are preferred.
std::optional<ExportedMemory::Gap> ExportedMemory::shortest_gap(std::size_t bytes,
                                                                Export needed) const {
  std::optional<Gap> best;
  std::size_t shortest = ~std::size_t{0};
  for (const bool exported : {true, false}) {
    if (best || (!exported && needed == Export::kMust)) break;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].handle.has_value() != exported) continue;
      for (const auto& [begin, length] : blocks_[i].unused) {
        if (length < bytes || length >= shortest) continue;
        best = Gap{i, begin};
        shortest = length;
      }
    }
  }
  return best;
}

ExportedMemory::Block ExportedMemory::made_block(std::size_t bytes, Export needed) const {
  const std::size_t length = std::max(up_to(bytes, kMapped), kLeastBlock);
  DeviceAllocation made(context_.driver(), length);
  std::optional<IpcHandle> handle;
  try {
    handle = made.exported();
  } catch (const DriverError&) {
    if (needed == Export::kMust) throw;
  }
  return {std::move(made), handle, length, {{0, length}}};
}

std::byte* ExportedMemory::allocate(std::size_t bytes, Export needed) {
  const std::size_t wanted = rounded(bytes);
  const ScopedContext scope = context_.scope();
  Lock lock(mutex_);
  bool may_wait = true;
  while (true) {
    if (const std::optional<Gap> gap = shortest_gap(wanted, needed)) return take(*gap, wanted);
    if (may_wait && released_bytes_ > kMostReleased) {
      may_wait = settle(lock);
      continue;
    }
    try {
      add_block(wanted, needed, lock);
    } catch (const DriverError& error) {
      if (error.code() != kOutOfMemory || !may_wait || released_.empty()) throw;
      may_wait = settle(lock);
    }
  }
}

// The lock is released while the driver is called, here and in settle().
void ExportedMemory::add_block(std::size_t bytes, Export needed, Lock& lock) {
  lock.unlock();
  std::optional<Block> made;
  try {
    made.emplace(made_block(bytes, needed));
  } catch (...) {
    lock.lock();
    throw;
  }
  lock.lock();
  blocks_.push_back(std::move(*made));
}

// Waits until the device has finished its work with everything released so far. Returns false if
// that is impossible because the program captures a stream.
bool ExportedMemory::settle(Lock& lock) {
  const std::vector<Released> now = std::exchange(released_, {});
  released_bytes_ = 0;
  lock.unlock();
  const Result code = context_.driver().call.CtxSynchronize();
  lock.lock();
  if (code == kSuccess) {
    for (const Released& one : now) put_back(one);
    return true;
  }
  for (const Released& one : now) released_bytes_ += one.bytes;
  released_.insert(released_.end(), now.begin(), now.end());
  if (!is_of_capture(code)) context_.driver().check(code, "cuCtxSynchronize");
  return false;
}

std::byte* ExportedMemory::take(Gap gap, std::size_t bytes) {
  Block& block = blocks_[gap.block];
  const std::size_t length = block.unused.at(gap.at);
  block.unused.erase(gap.at);
  if (length > bytes) block.unused[gap.at + bytes] = length - bytes;
  auto* const address = reinterpret_cast<std::byte*>(block.memory.get() + gap.at);
  given_[address] = bytes;
  return address;
}

void ExportedMemory::release(std::byte* address) noexcept {
  const std::lock_guard lock(mutex_);
  const SharedPlace place = [&] {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const Address begin = blocks_[i].memory.get(), at = address_of(address);
      if (at >= begin && at < begin + blocks_[i].bytes) return SharedPlace(i + 1, at - begin);
    }
    return SharedPlace();
  }();
  const auto given = given_.find(address);
  if (!place || given == given_.end()) return;
  released_.push_back({{place.allocation() - 1, place.offset()}, given->second});
  released_bytes_ += given->second;
  given_.erase(given);
}

void ExportedMemory::put_back(const Released& released) {
  auto& unused = blocks_[released.gap.block].unused;
  std::size_t begin = released.gap.at, length = released.bytes;
  const auto behind = unused.find(begin + length);
  if (behind != unused.end()) {
    length += behind->second;
    unused.erase(behind);
  }
  const auto next = unused.lower_bound(begin);
  if (next != unused.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      begin = before->first;
      length += before->second;
    }
  }
  unused[begin] = length;
}

SharedPlace ExportedMemory::find(const void* array, std::size_t bytes) const {
  const Address at = address_of(array);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Address begin = blocks_[i].memory.get();
    if (at < begin || at + bytes > begin + blocks_[i].bytes) continue;
    return blocks_[i].handle ? SharedPlace(i + 1, at - begin) : SharedPlace();
  }
  return {};
}

ExportedBlock ExportedMemory::block_of(SharedPlace place) const {
  const std::lock_guard lock(mutex_);
  const Block& block = blocks_.at(place.allocation() - 1);
  return {block.handle.value(), block.memory.get(), block.bytes};
}

}  // namespace gradred::device
