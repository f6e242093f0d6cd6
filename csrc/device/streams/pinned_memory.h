// Host memory from which devices copy, and to which they copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>
#include <variant>
#include <vector>

#include "device/driver/cuda_context.h"
#include "device/driver/driver_gate.h"

namespace gradred::device {

// The pinned host memory of one context, cached because pinning takes the driver a millisecond and
// more. The driver may have to wait for the device in these functions. They do that only while the
// gate is closed.
class PinnedMemory {
 public:
  PinnedMemory(const CudaContext& context, DriverGate& gate) : context_(context), gate_(gate) {}

  // Memory that is not pinned if pinning is impossible now.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* address) noexcept;
  // Returns nullptr if pinning is impossible now; the memory is then pinned at the beginning of the
  // next request, if the gate is closed by then.
  std::byte* allocate_pinned(std::size_t bytes);
  // Whether `address` is in memory of allocate() that is not pinned.
  bool is_plain(const void* address);
  void free_later(ImportedAllocation imported) noexcept;

 private:
  std::byte* take_spare(std::size_t bytes);  // nullptr if none fits
  std::size_t most_spare_bytes(std::size_t next = 0) const;
  void catch_up();                    // frees dropped_ and pins wanted_, if that is possible now
  std::byte* pin(std::size_t bytes);  // the driver may wait for the device

  const CudaContext& context_;
  DriverGate& gate_;
  std::mutex mutex_;
  std::map<std::byte*, PinnedAllocation> pinned_;  // all pinned memory
  std::map<std::byte*, std::size_t> in_use_;       // bytes of what is in use
  std::multimap<std::size_t, std::byte*> spare_;
  std::size_t spare_bytes_ = 0;
  std::size_t longest_ = 0;  // the longest allocation that was pinned
  using Dropped = std::variant<PinnedAllocation, ImportedAllocation>;
  std::vector<Dropped> dropped_;     // freed by the next allocation
  std::vector<std::size_t> wanted_;  // sizes that could not be pinned when they were requested
  // Memory that was allocated instead of pinned memory, with its bytes.
  std::map<const std::byte*, std::size_t> plain_;
  std::atomic<std::size_t> plain_count_{0};
};

}  // namespace gradred::device
