// Device memory for arrays that the devices of other processes read and write in place. gradred
// allocates it in blocks, exports each block once by CUDA IPC, and cuts it into arrays. If the
// driver exports nothing (MIG, WSL, sandboxes), arrays still lie in this memory, but peers cannot
// reach it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "device/driver/cuda_context.h"
#include "device/driver/owners.h"
#include "memory/workspace.h"

namespace gradred::device {

enum class Export : bool { kIfPossible, kMust };

// What peers open: a whole allocation, and its address in this process.
struct ExportedBlock {
  IpcHandle handle;
  Address begin;
  std::size_t bytes;
};

// The exported memory of one context. Thread-safe. Blocks are never freed, only reused for later
// arrays: peers hold them open, and a process cannot know when they have closed them.
class ExportedMemory {
 public:
  explicit ExportedMemory(const CudaContext& context) : context_(context) {}

  // Throws DriverError if memory is short, or if `needed` is kMust and it cannot be exported. Like
  // cudaMalloc and cudaFree, waits for the device's work before it reuses released memory. Such a
  // wait breaks a program's capture of a CUDA graph in any stream, so it is done only once much
  // memory has been released.
  std::byte* allocate(std::size_t bytes, Export needed);
  void release(std::byte* address) noexcept;
  // Returns an empty place if the array is not in this memory, or its block could not be exported.
  SharedPlace find(const void* array, std::size_t bytes) const;
  ExportedBlock block_of(SharedPlace place) const;

 private:
  struct Block {
    DeviceAllocation memory;
    std::optional<IpcHandle> handle;  // no value: the driver has refused to export it
    std::size_t bytes;
    // Unused ranges: bytes by offset in the block.
    std::map<std::size_t, std::size_t> unused{};
  };
  struct Gap {
    std::size_t block, at;
  };
  struct Released {
    Gap gap;
    std::size_t bytes;
  };
  using Lock = std::unique_lock<std::mutex>;

  static std::size_t rounded(std::size_t bytes);
  std::optional<Gap> shortest_gap(std::size_t bytes, Export needed) const;
  Block made_block(std::size_t bytes, Export needed) const;
  std::byte* take(Gap gap, std::size_t bytes);
  void add_block(std::size_t bytes, Export needed, Lock& lock);
  bool settle(Lock& lock);
  void put_back(const Released& released);

  const CudaContext& context_;
  // Not held while the driver may wait for the device, because the thread that advances operations
  // takes it, too.
  mutable std::mutex mutex_;
  std::vector<Block> blocks_;  // an allocation's number in SharedPlace is its index + 1
  std::map<std::byte*, std::size_t> given_{};  // bytes of each array that is in use
  std::vector<Released> released_;             // released arrays that the device may still use
  std::size_t released_bytes_ = 0;
};

// A range of that memory, which the destructor releases.
class ExportedRange {
 public:
  ExportedRange(ExportedMemory& memory, std::size_t bytes, Export needed = Export::kMust)
      : memory_(memory), address_(memory.allocate(bytes, needed)) {}
  ~ExportedRange() {
    if (address_ != nullptr && !is_kept_) memory_.release(address_);
  }
  ExportedRange(const ExportedRange&) = delete;
  ExportedRange& operator=(const ExportedRange&) = delete;

  std::byte* get() const { return address_; }
  // Never releases the range, because something may still use it.
  void keep_for_ever() noexcept { is_kept_ = true; }

 private:
  ExportedMemory& memory_;
  std::byte* const address_;
  std::atomic<bool> is_kept_{false};
};

}  // namespace gradred::device
