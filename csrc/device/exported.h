// Memory of a device for arrays that other processes' devices read and write where they lie:
// allocations of gradred's own, exported once by CUDA IPC, and cut into arrays.
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

// Of one context. Thread-safe. What it has once allocated stays allocated for later arrays: peers
// hold it open, and no process can know when they have let go of it.
class ExportedMemory {
 public:
  explicit ExportedMemory(CudaMemory& memory) : memory_(memory) {}

  // Throws DriverError: there is no such memory, or it cannot be exported. As cudaFree and
  // cudaMalloc do: waits for the device's work before it gives memory away that was released.
  std::byte* allocate(std::size_t bytes);
  void release(std::byte* address) noexcept;
  SharedPlace find(const void* array, std::size_t bytes) const;  // nowhere: not of these
  IpcHandle handle_of(SharedPlace place) const;

 private:
  struct Block {
    DeviceAllocation memory;
    IpcHandle handle;
    std::size_t bytes;
    std::map<std::size_t, std::size_t> unused{};  // bytes by where they begin
  };

  static std::size_t rounded(std::size_t bytes);
  std::byte* take(std::size_t index, std::size_t at, std::size_t bytes);

  CudaMemory& memory_;
  mutable std::mutex mutex_;
  std::vector<Block> blocks_;                  // a place's allocation is the index, and one more
  std::map<std::byte*, std::size_t> given_{};  // bytes of each array
  bool may_be_in_use_ = false;  // by work that the device was given before arrays were released
};

// Some of it, as long as this lives.
class ExportedRange {
 public:
  ExportedRange(ExportedMemory& memory, std::size_t bytes)
      : memory_(memory), address_(memory.allocate(bytes)) {}
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
