#include "device/ipc/peers_memory.h"

#include <iterator>
#include <utility>

#include "base/errors.h"
namespace gradred::device {

// No two allocations of the owner overlap, so an opened one that overlaps the new one has been
// freed. Some drivers cannot open the new one before the old one is closed.
Address PeersMemory::open(Key key, const ExportedBlock& block) {
  const std::lock_guard lock(mutex_);
  auto found = opened_.find(key);
  if (found == opened_.end()) {
    for (auto one = opened_.lower_bound({key.first, 0});
         one != opened_.end() && one->first.first == key.first;) {
      const Opened& other = one->second;
      const bool overlaps =
          other.begin < block.begin + block.bytes && block.begin < other.begin + other.bytes;
      one = overlaps ? end(one) : std::next(one);
    }
    ended_.clear();
    Opened made{ImportedAllocation(context_.driver(), block.handle), block.begin, block.bytes};
    require_whole(made.memory.get(), block.bytes);
    found = opened_.emplace(key, std::move(made)).first;
  }
  ++found->second.holders;
  return found->second.memory.get();
}

// The documentation does not promise that the opened range begins where the allocation does.
void PeersMemory::require_whole(Address opened, std::size_t bytes) const {
  Address begin = 0;
  std::size_t length = 0;
  const Driver& driver = context_.driver();
  driver.check(driver.call.MemGetAddressRange(&begin, &length, opened), "cuMemGetAddressRange");
  if (begin != opened || length < bytes) {
    throw DeviceError("CUDA IPC has opened another part of a peer's memory than its allocation");
  }
}

void PeersMemory::let_go(Key key) noexcept {
  ImportedAllocation last;
  {
    const std::lock_guard lock(mutex_);
    const auto found = opened_.find(key);
    if (found == opened_.end() || --found->second.holders > 0 || found->second.stays) return;
    last = std::move(found->second.memory);
    opened_.erase(found);
  }
  host_.free_later(std::move(last));  // this takes a lock that is held while others open memory
}

PeersMemory::All::iterator PeersMemory::end(All::iterator one) {
  if (one->second.stays) return std::next(one);
  ended_.push_back(std::move(one->second.memory));
  return opened_.erase(one);
}

void PeersMemory::end(Key key) {
  const std::lock_guard lock(mutex_);
  if (const auto found = opened_.find(key); found != opened_.end()) end(found);
}

void PeersMemory::close_ended() {
  const std::lock_guard lock(mutex_);
  ended_.clear();
}

void PeersMemory::keep_for_ever(Key key) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto found = opened_.find(key); found != opened_.end()) found->second.stays = true;
}

}  // namespace gradred::device
