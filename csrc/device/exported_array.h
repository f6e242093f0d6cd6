// An array in device memory that peers reach in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/driver/options.h"
#include "device/ipc/exported.h"

namespace gradred::device {

// An array of bytes in exported memory, on `device` or on the device of this thread's current
// context. Throws DeviceError if there is no such device, no driver, no context or no memory.
class ExportedArray {
 public:
  // `device` -1: the current one.
  ExportedArray(std::size_t bytes, int device, const Options& options);

  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(range_->get()); }
  int device() const { return device_; }

 private:
  std::optional<ExportedRange> range_;
  int device_ = -1;
};

}  // namespace gradred::device
