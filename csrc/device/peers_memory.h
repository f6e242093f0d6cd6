// Allocations of other processes that this process has opened, once each for all workspaces.
//
// What a process has opened stays with the device until it is closed, even if its owner has freed
// it: so the owner tells which of them have ended (Workspace::take_ended).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "device/exported.h"
#include "device/owners.h"

namespace gradred::device {

class CudaMemory;

// Of one context. Thread-safe.
class PeersMemory {
 public:
  // The peer's CudaMemory, and the number that it has given: never the same for two allocations.
  using Key = std::pair<std::uint64_t, std::uint64_t>;

  explicit PeersMemory(CudaMemory& memory) : memory_(memory) {}

  // Where this process has it; let_go() as often. In the memory's context, and where the driver may
  // wait (Orders::while_none_is_open), as close_ended(). Throws DriverError.
  Address open(Key key, const ExportedBlock& block);
  void let_go(Key key) noexcept;
  // Its owner has freed it, and nobody works with it: it is closed, whoever else holds it.
  void end(Key key);
  void close_ended();
  // Something may still read or write it.
  void keep_for_ever(Key key) noexcept;

 private:
  struct Opened {
    ImportedAllocation memory;
    Address begin;  // in its owner
    std::size_t bytes;
    int holders = 0;
    bool stays = false;
  };
  using All = std::map<Key, Opened>;

  All::iterator end(All::iterator one);
  void require_whole(Address opened, std::size_t bytes) const;

  CudaMemory& memory_;
  std::mutex mutex_;
  All opened_;
  std::vector<ImportedAllocation> ended_;  // to be closed
};

}  // namespace gradred::device
