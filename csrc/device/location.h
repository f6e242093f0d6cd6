// Finds where the memory of an array lies that claims to be on a GPU, by the CUDA Array Interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "device/driver/options.h"
#include "memory/memory.h"

namespace gradred::device {

enum class Place {
  kHost,     // whatever the array claims: the host may read it
  kDevice,   // in a device's memory, according to the driver
  kNowhere,  // neither device memory nor readable by the host
};

struct Location {
  Place place = Place::kHost;
  std::string text;  // for messages, such as "the memory of CUDA device 0 (NAME)"; empty for kHost
  DeviceMemory* memory = nullptr;  // for kDevice; lives as long as the process
};

// Does not load the driver and does not make a context: if no driver is loaded, or nothing has
// initialised it, no memory is a device's. A device may be writing to host memory that the driver
// knows. If `stream`, the array's own, is given, its work is complete when this returns.
Location locate(const void* address, std::size_t bytes, std::optional<std::uint64_t> stream,
                const Options& options);

// A quicker version that uses the pointer cache and asks the driver only whether the entry is still
// valid. Returns nullptr if the array is not known to be in a device's memory; locate() then finds
// out more.
DeviceMemory* device_at(const void* address, std::size_t bytes, const Options& options);

}  // namespace gradred::device
