// Allocations that the program has made with cudaMalloc, whose arrays peers' devices read and write
// in place, like those of ExportedMemory. CUDA cannot export pools, mapped chunks and managed
// memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "device/driver/cuda_context.h"
#include "device/driver/driver_gate.h"
#include "device/ipc/exported.h"
#include "memory/workspace.h"

namespace gradred::device {

// Such allocations of one context. Thread-safe. An allocation is exported when a second call uses
// it: for a single call, opening it is not worth the cost. It is identified by its buffer id, for
// which each call asks the driver. So freed memory is never mistaken for what lies at its address
// now.
class ProgramsMemory {
 public:
  static constexpr std::size_t kMost = 1024;  // allocations, at most

  ProgramsMemory(const CudaContext& context, DriverGate& gate) : context_(context), gate_(gate) {}

  // The places of one call's arrays, which the program keeps allocated until the call has ended. A
  // place is empty if its array cannot be exported, or has not been yet.
  SharedArrays::Places find(SharedArrays::Array input, SharedArrays::Array result);
  // Whether the array lies in an allocation that can be exported and has not been.
  bool is_new(SharedArrays::Array array);
  // No value if the allocation has been freed meanwhile.
  std::optional<ExportedBlock> block_of(std::uint64_t allocation) const;
  bool has(std::uint64_t allocation) const;
  // The number that have been freed.
  std::uint64_t ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  struct Range {
    Address begin = 0;
    std::size_t bytes = 0;  // 0: it cannot be exported
    std::uint64_t id = 0;
    bool operator==(const Range&) const = default;
  };
  struct Allocation {
    Range range;
    std::uint64_t number;
    std::optional<IpcHandle> handle;  // no value: the driver has refused to export it
  };
  struct Seen {
    std::uint64_t id = 0, turn = 0;
  };
  using Allocations = std::map<Address, Allocation>;

  Range ask(SharedArrays::Array array) const;
  SharedPlace place(const Range& range, SharedArrays::Array array, std::uint64_t turn);
  bool is_seen_again(const Range& range, std::uint64_t turn);
  const Allocation* known(const Range& range);
  bool has_room();
  std::optional<Allocation> exported(const Range& range);
  Allocations::iterator end(Allocations::iterator one);
  void end_freed();

  const CudaContext& context_;
  DriverGate& gate_;
  mutable std::mutex mutex_;
  Allocations allocations_;                    // by address
  std::map<std::uint64_t, Address> exported_;  // addresses of the exported ones, by number
  std::array<Seen, 1024> seen_{};              // ids of some allocations that calls have used
  std::uint64_t turns_ = 0;                    // number of calls
  std::uint64_t numbers_ = SharedPlace::kFirstOfPrograms;
  // Number of allocations that were not exported because there was no room.
  std::uint64_t refused_ = 0;
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace gradred::device
