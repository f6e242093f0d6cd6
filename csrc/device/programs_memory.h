// Arrays in allocations of the program's own, by cudaMalloc, that peers' devices read and write
// where they lie, as those of ExportedMemory. Pools, mapped chunks and managed memory CUDA exports
// to nobody.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "device/exported.h"
#include "memory/workspace.h"

namespace gradred::device {

class CudaMemory;

// Of one context. Thread-safe. An allocation is exported when a second call comes with it: one that
// is seen once is not worth that peers open it. It is known by its buffer id, which the driver is
// asked for in each call: memory that was freed is never taken for what lies at its address now.
class ProgramsMemory {
 public:
  static constexpr std::size_t kMost = 1024;  // allocations

  explicit ProgramsMemory(CudaMemory& memory) : memory_(memory) {}

  // Those of one call, which the program keeps until it has ended. Nowhere: exported to nobody, or
  // not yet.
  Workspace::Places find(Workspace::Array input, Workspace::Array result);
  // None: it has ended since.
  std::optional<ExportedBlock> block_of(std::uint64_t allocation) const;
  bool has(std::uint64_t allocation) const;
  std::uint64_t ended() const { return ended_.load(std::memory_order_acquire); }  // so many

 private:
  struct Range {
    Address begin = 0;
    std::size_t bytes = 0;  // 0: nothing that can be exported
    std::uint64_t id = 0;
    bool operator==(const Range&) const = default;
  };
  struct Allocation {
    Range range;
    std::uint64_t number;
    std::optional<IpcHandle> handle;  // none: the driver has refused it
  };
  struct Seen {
    std::uint64_t id = 0, turn = 0;
  };
  using Allocations = std::map<Address, Allocation>;

  Range ask(Workspace::Array array) const;
  SharedPlace place(const Range& range, Workspace::Array array, std::uint64_t turn);
  bool is_seen_again(const Range& range, std::uint64_t turn);
  const Allocation* known(const Range& range);
  bool has_room();
  std::optional<Allocation> exported(const Range& range);
  Allocations::iterator end(Allocations::iterator one);
  void end_freed();

  CudaMemory& memory_;
  mutable std::mutex mutex_;
  Allocations allocations_;                    // by where they begin
  std::map<std::uint64_t, Address> exported_;  // where those begin that have a handle, by number
  std::array<Seen, 1024> seen_{};              // some that calls came with, by their ids
  std::uint64_t turns_ = 0;                    // calls
  std::uint64_t numbers_ = SharedPlace::kFirstOfPrograms;
  std::uint64_t refused_ = 0;  // for want of room
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace gradred::device
