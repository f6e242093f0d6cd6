#include "device/driver/pointer_cache.h"

#include <algorithm>
#include <optional>

#include "device/driver/owners.h"

namespace gradred::device {
namespace {

// The id of the allocation at an address; 0 if there is none.
std::uint64_t buffer_id(const Driver& driver, Address address) {
  constexpr int kWanted[] = {kBufferId};
  std::uint64_t id = 0;
  void* values[] = {&id};
  const Result code = driver.call.PointerGetAttributes(1, kWanted, values, address);
  return code == kSuccess ? id : 0;
}

// Finds the range of the allocation or of the mapped chunk. The range attributes would give the
// whole reserved range of addresses, in which chunks of other devices may lie, or none. Drivers
// only know ranges on the current context's device.
void find_range(const Driver& driver, Address address, PointerInfo& found) try {
  std::optional<PrimaryContext> primary;
  if (found.context == nullptr) primary.emplace(driver, found.device);
  const ScopedContext scope(driver, primary ? primary->get() : found.context);
  Address begin = 0;
  std::size_t bytes = 0;
  if (driver.call.MemGetAddressRange(&begin, &bytes, address) != kSuccess) return;
  found.begin = begin;
  found.bytes = bytes;
} catch (const DriverError&) {  // no context reaches it, so it is not cached
}

}  // namespace

PointerInfo ask(const Driver& driver, Address address) {
  constexpr int kWanted[] = {kMemoryType, kIsManaged, kDeviceOf,
                             kContextOf,  kBufferId,  kIsIpcCapable};
  unsigned type = 0, managed = 0, ipc_capable = 0;
  int device = -1;
  PointerInfo found;
  void* values[] = {&type, &managed, &device, &found.context, &found.buffer_id, &ipc_capable};
  const Result code = driver.call.PointerGetAttributes(6, kWanted, values, address);
  // Nothing has been allocated yet, or all of it is gone.
  if (code == kNotInitialized || code == kDeinitialized) return {};
  // Some drivers return these for an unknown address, or in a thread without a context.
  if (code == kInvalidValue || code == kInvalidContext) return {};
  driver.check(code, "cuPointerGetAttributes");
  if (type != kTypeDevice && (managed & 0xff) == 0) return {.pinned = type == kTypeHost};
  found.kind = (managed & 0xff) != 0 ? Kind::kManaged : Kind::kDevice;
  // Some drivers write one byte only for these two attributes.
  found.ipc_capable = (ipc_capable & 0xff) != 0;
  found.device = device;
  find_range(driver, address, found);
  return found;
}

PointerInfo* PointerCache::entry_of(Address address) {
  if (entries_[last_].holds(address, 1)) return &entries_[last_];
  for (std::size_t i = 0; i < kEntries; ++i) {
    if (entries_[i].holds(address, 1)) {
      last_ = i;
      return &entries_[i];
    }
  }
  return nullptr;
}

PointerInfo PointerCache::find(const void* pointer) {
  const auto address = reinterpret_cast<Address>(pointer);
  if (PointerInfo* const entry = entry_of(address)) {
    if (buffer_id(driver_, address) == entry->buffer_id) [[likely]] {
      ++counts_.hits;
      return *entry;
    }
    ++counts_.stale;
  }
  ++counts_.misses;
  const PointerInfo found = ask(driver_, address);
  keep(found);
  return found;
}

// Entries that overlap the new one are of memory that has been freed.
void PointerCache::keep(const PointerInfo& found) {
  const bool lasts = found.kind != Kind::kHost && found.buffer_id != 0 && found.bytes > 0;
  if (!lasts) return;
  for (PointerInfo& entry : entries_) {
    if (entry.begin < found.begin + found.bytes && found.begin < entry.begin + entry.bytes) {
      entry = {};
    }
  }
  entries_[next_] = found;
  last_ = next_;
  next_ = (next_ + 1) % kEntries;
}

}  // namespace gradred::device
