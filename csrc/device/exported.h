// Memory of a device for arrays that other processes' devices read and write where they lie:
// allocations of gradred's own, exported once by CUDA IPC, and cut into arrays. Where the driver
// exports nothing (MIG, WSL, sandboxes), arrays lie in such memory all the same, alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "device/options.h"
#include "device/owners.h"
#include "memory/workspace.h"

namespace gradred::device {

class CudaMemory;

enum class Export : bool { kIfPossible, kMust };

// What peers open: an allocation as a whole, and where it lies in this process.
struct ExportedBlock {
  IpcHandle handle;
  Address begin;
  std::size_t bytes;
};

// Of one context. Thread-safe. What it has once allocated stays allocated for later arrays: peers
// hold it open, and no process can know when they have let go of it.
class ExportedMemory {
 public:
  explicit ExportedMemory(CudaMemory& memory) : memory_(memory) {}

  // Throws DriverError: there is no such memory, or it cannot be exported and must. As cudaFree and
  // cudaMalloc do: waits for the device's work before it gives memory away that was released. That
  // breaks a program's capture of a CUDA graph, in whichever stream: so it waits for much at once.
  std::byte* allocate(std::size_t bytes, Export needed);
  void release(std::byte* address) noexcept;
  // Nowhere: not of these, or of such as could not be exported.
  SharedPlace find(const void* array, std::size_t bytes) const;
  ExportedBlock block_of(SharedPlace place) const;

 private:
  struct Block {
    DeviceAllocation memory;
    std::optional<IpcHandle> handle;  // none: the driver has refused it
    std::size_t bytes;
    std::map<std::size_t, std::size_t> unused{};  // bytes by where they begin
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

  CudaMemory& memory_;
  // Not held while the driver may wait for the device: who carries operations on takes it, too.
  mutable std::mutex mutex_;
  std::vector<Block> blocks_;                  // a place's allocation is the index, and one more
  std::map<std::byte*, std::size_t> given_{};  // bytes of each array
  std::vector<Released> released_;             // with which the device may still be at work
  std::size_t released_bytes_ = 0;
};

// Some of it, as long as this lives.
class ExportedRange {
 public:
  ExportedRange(ExportedMemory& memory, std::size_t bytes, Export needed = Export::kMust)
      : memory_(memory), address_(memory.allocate(bytes, needed)) {}
  ~ExportedRange() {
    if (address_ != nullptr) memory_.release(address_);
  }
  ExportedRange(const ExportedRange&) = delete;
  ExportedRange& operator=(const ExportedRange&) = delete;

  std::byte* get() const { return address_; }
  // Nobody else gets it: something may still use it.
  void keep_for_ever() noexcept { address_ = nullptr; }

 private:
  ExportedMemory& memory_;
  std::byte* address_;
};

// An array of bytes there, on the device of the context that is current in this thread, or on
// `device`. Throws DeviceError: there is no such device, no driver, no context, or no memory.
class ExportedArray {
 public:
  ExportedArray(std::size_t bytes, int device, const Options& options);  // device -1: the current

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(range_->get()); }
  int device() const { return device_; }

 private:
  std::optional<ExportedRange> range_;
  int device_ = -1;
};

}  // namespace gradred::device
