#include "device/exported.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/errors.h"
#include "device/memory.h"
#include "device/pointer_cache.h"

namespace gradred::device {
namespace {

constexpr std::size_t kUnit = 512;  // arrays begin at multiples of it, as cudaMalloc's do
// CUDA exports what the driver maps at once, which is so long: an allocation that shares it with
// another one would export that, too.
constexpr std::size_t kMapped = std::size_t{2} << 20;
constexpr std::size_t kLeastBlock = std::size_t{32} << 20;  // of which small arrays share one

std::size_t up_to(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Memory that is allocated there says which context it is.
PointerInfo probe(const Driver& driver) {
  const DeviceAllocation made(driver, 1);
  return ask(driver, made.get());
}

// In this thread's context, or the device's primary one, which somebody has made. -1: any device.
CudaMemory& memory_of(const Driver& driver, int device, const Options& options) {
  if (driver.current() != nullptr) {
    const PointerInfo found = probe(driver);
    if (device < 0 || found.device == device) return CudaMemory::of(driver, found, options);
  }
  const int wanted = std::max(device, 0);
  const PrimaryContext primary(driver, wanted);
  const ScopedContext scope(driver, primary.get());
  return CudaMemory::of(driver, probe(driver), options);
}

}  // namespace

std::size_t ExportedMemory::rounded(std::size_t bytes) {
  return up_to(std::max<std::size_t>(bytes, 1), kUnit);
}

// The shortest that is long enough.
std::byte* ExportedMemory::allocate(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes);
  const std::lock_guard lock(mutex_);
  const ScopedContext scope = memory_.scope();
  std::size_t best = blocks_.size(), at = 0, shortest = ~std::size_t{0};
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    for (const auto& [begin, length] : blocks_[i].unused) {
      if (length < wanted || length >= shortest) continue;
      best = i, at = begin, shortest = length;
    }
  }
  if (best == blocks_.size()) {
    const std::size_t length = std::max(up_to(wanted, kMapped), kLeastBlock);
    DeviceAllocation made(memory_.driver(), length);
    const IpcHandle handle = made.exported();
    blocks_.push_back({std::move(made), handle, length, {{0, length}}});
  } else if (std::exchange(may_be_in_use_, false)) {
    memory_.driver().check(memory_.driver().call.CtxSynchronize(), "cuCtxSynchronize");
  }
  return take(best, at, wanted);
}

std::byte* ExportedMemory::take(std::size_t index, std::size_t at, std::size_t bytes) {
  Block& block = blocks_[index];
  const std::size_t length = block.unused.at(at);
  block.unused.erase(at);
  if (length > bytes) block.unused[at + bytes] = length - bytes;
  auto* const address = reinterpret_cast<std::byte*>(block.memory.get() + at);
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
  auto& unused = blocks_[place.allocation() - 1].unused;
  std::size_t begin = place.offset(), length = given->second;
  given_.erase(given);
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
  may_be_in_use_ = true;
}

SharedPlace ExportedMemory::find(const void* array, std::size_t bytes) const {
  const Address at = address_of(array);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Address begin = blocks_[i].memory.get();
    if (at >= begin && at + bytes <= begin + blocks_[i].bytes) return {i + 1, at - begin};
  }
  return {};
}

IpcHandle ExportedMemory::handle_of(SharedPlace place) const {
  const std::lock_guard lock(mutex_);
  return blocks_.at(place.allocation() - 1).handle;
}

ExportedArray::ExportedArray(std::size_t bytes, int device, const Options& options) {
  const Driver* const driver = Driver::loaded(options.driver);
  if (driver == nullptr || !driver->initialised()) {
    throw DeviceError(
        "an array on a GPU: nobody in this process has initialised the CUDA driver. Do so first, "
        "for example by cupy.cuda.runtime.free(0) or torch.cuda.init()");
  }
  CudaMemory& memory = memory_of(*driver, device, options);
  range_.emplace(memory.exported(), bytes);
  device_ = memory.ordinal();
}

}  // namespace gradred::device
