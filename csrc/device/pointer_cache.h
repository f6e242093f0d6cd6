// What kind of memory an address is, as the CUDA driver says, kept by ranges of addresses.
//
// An answer is kept with the buffer id of its allocation, which the driver gives to no other one,
// and each hit asks for the id again: memory that was freed, or was freed and allocated again at
// the same address, has another. That memory is the host's is never kept, since nothing would say
// when it has become a device's. Only cuPointerGetAttributes is asked, not cuPointerGetAttribute,
// which is slow for the host's memory since driver 580.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/driver.h"

namespace gradred::device {

enum class Kind : std::uint8_t {
  kHost,  // pinned or not, or no memory at all: the driver does not tell
  kDevice,
  kManaged,  // it moves between host and device; both may touch it
};

struct PointerInfo {
  Kind kind = Kind::kHost;
  bool pinned = false;       // the host's, at addresses that the driver knows
  bool ipc_capable = false;  // by cuIpcGetMemHandle
  Ordinal device = -1;
  ContextHandle context = nullptr;  // null in pools and mapped chunks
  std::uint64_t buffer_id = 0;
  // Of the allocation, or of the one mapped chunk, that holds the address; 0 bytes: unknown.
  Address begin = 0;
  std::size_t bytes = 0;

  // Whether one allocation holds all of [address, address + size).
  bool holds(Address address, std::size_t size) const {
    return address >= begin && size <= bytes && address - begin <= bytes - size;
  }
  bool operator==(const PointerInfo&) const = default;
};

// Asks the driver all there is to know. Throws DriverError where it fails.
PointerInfo ask(const Driver& driver, Address address);

// For one thread at a time.
class PointerCache {
 public:
  struct Counts {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t stale = 0;       // of the misses: another allocation was found in the range
    std::uint64_t mismatches = 0;  // an audit found another answer than the one kept: a bug
  };

  explicit PointerCache(const Driver& driver) : driver_(driver) {}

  // An audit asks the driver everything at a hit, too.
  PointerInfo find(const void* pointer, bool audits = false);
  const Counts& counts() const { return counts_; }

 private:
  static constexpr std::size_t kEntries = 16;

  PointerInfo* entry_of(Address address);
  void keep(const PointerInfo& found);

  const Driver& driver_;
  std::array<PointerInfo, kEntries> entries_{};
  std::size_t last_ = 0;  // the entry that was found last
  std::size_t next_ = 0;  // the one to be replaced next
  Counts counts_;
};

}  // namespace gradred::device
