// Where the memory of an array lies that says it is a GPU's, by the CUDA Array Interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "device/options.h"
#include "memory/memory.h"

namespace gradred::device {

enum class Place {
  kHost,     // whatever the array says: the host may read it
  kDevice,   // the driver says so
  kNowhere,  // neither a device's nor readable
};

struct Location {
  Place place = Place::kHost;
  std::string text;  // for messages, empty for the host's: "the memory of CUDA device 0 (NAME)"
  DeviceMemory* memory = nullptr;  // the device's; lives as long as the process
};

// Loads no driver and makes no context: with no driver in the process, or one that nobody has
// initialised, no memory is a device's. Host memory that the driver knows may have a device writing
// to it: `stream`, the array's own, has done its work when this returns.
Location locate(const void* address, std::size_t bytes, std::optional<std::uint64_t> stream,
                const Options& options);

// The same for what lies in a device's memory for all that the driver said last, which is asked
// only whether that still holds. Null: locate() tells more.
DeviceMemory* device_at(const void* address, std::size_t bytes, const Options& options);

// Looks at addresses of which something was kept, by all threads, while `audits_pointers` was set.
struct PointerAudit {
  std::uint64_t looks = 0;
  std::uint64_t mismatches = 0;  // the driver said something else: a bug, of gradred's or its own
};
PointerAudit pointer_audit();

// Whether the host may read memory, by its ends; asks no driver.
bool is_readable(const void* address, std::size_t bytes);

}  // namespace gradred::device
