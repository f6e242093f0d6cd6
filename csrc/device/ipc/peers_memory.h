// Allocations of other processes that this process has opened. Each is opened once and shared by
// all workspaces.
//
// An opened allocation stays on the device until it is closed, even if its owner has freed it. So
// the owner sends its peers a list of those that have ended (SharedArrays::take_ended).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "device/driver/cuda_context.h"
#include "device/driver/owners.h"
#include "device/ipc/exported.h"
#include "device/streams/pinned_memory.h"

namespace gradred::device {

// The opened allocations of one context. Thread-safe.
class PeersMemory {
 public:
  // The id of the peer's CudaContext and the number that it has given the allocation; never reused.
  using Key = std::pair<std::uint64_t, std::uint64_t>;

  PeersMemory(const CudaContext& context, PinnedMemory& host) : context_(context), host_(host) {}

  // Returns the allocation's address in this process. Each open() needs one let_go(). The
  // context must be current, and the driver must be allowed to wait
  // (DriverGate::while_none_is_open); the same holds for close_ended(). Throws DriverError.
  Address open(Key key, const ExportedBlock& block);
  void let_go(Key key) noexcept;
  // Called when the owner has freed it and nothing uses it any more: it will be closed, even if
  // others still hold it.
  void end(Key key);
  void close_ended();
  // Never closes it, because something may still read or write it.
  void keep_for_ever(Key key) noexcept;

 private:
  struct Opened {
    ImportedAllocation memory;
    Address begin;  // its address in the owner's process
    std::size_t bytes;
    int holders = 0;
    bool stays = false;
  };
  using All = std::map<Key, Opened>;

  All::iterator end(All::iterator one);
  void require_whole(Address opened, std::size_t bytes) const;

  const CudaContext& context_;
  PinnedMemory& host_;
  std::mutex mutex_;
  All opened_;
  std::vector<ImportedAllocation> ended_;  // to be closed
};

}  // namespace gradred::device
