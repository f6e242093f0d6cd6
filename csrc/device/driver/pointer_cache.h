// Caches the driver's answers to what kind of memory an address is, by ranges of addresses.
//
// An answer is stored with the buffer id of its allocation, which the driver never reuses. Each hit
// asks for the id again: memory that was freed, even if it was allocated again at the same address,
// has another id. Answers for host memory are not cached, since nothing would show when the address
// has become a device's. Only cuPointerGetAttributes is used; cuPointerGetAttribute is slow for
// host memory since driver 580.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/driver/driver.h"

namespace gradred::device {

enum class Kind : std::uint8_t {
  kHost,  // pinned or not, or no memory at all: the driver does not distinguish
  kDevice,
  kManaged,  // moves between host and device; both may access it
};

struct PointerInfo {
  Kind kind = Kind::kHost;
  bool pinned = false;       // host memory that the driver knows
  bool ipc_capable = false;  // can be exported by cuIpcGetMemHandle
  Ordinal device = -1;
  ContextHandle context = nullptr;  // nullptr for pools and mapped chunks
  std::uint64_t buffer_id = 0;
  // The range of the allocation, or of the mapped chunk, that contains the address; 0 bytes:
  // unknown.
  Address begin = 0;
  std::size_t bytes = 0;

  // Whether [address, address + size) lies within this one allocation.
  bool holds(Address address, std::size_t size) const {
    return address >= begin && size <= bytes && address - begin <= bytes - size;
  }
  bool operator==(const PointerInfo&) const = default;
};

// Asks the driver for all properties of an address. Throws DriverError if it fails.
PointerInfo ask(const Driver& driver, Address address);

// For one thread at a time.
class PointerCache {
 public:
  struct Counts {
    std::uint64_t hits = 0;
    std::uint64_t misses = 0;
    std::uint64_t stale = 0;  // misses for which the cached range had another allocation
  };

  explicit PointerCache(const Driver& driver) : driver_(driver) {}

  PointerInfo find(const void* pointer);
  const Counts& counts() const { return counts_; }

 private:
  static constexpr std::size_t kEntries = 16;

  PointerInfo* entry_of(Address address);
  void keep(const PointerInfo& found);

  const Driver& driver_;
  std::array<PointerInfo, kEntries> entries_{};
  std::size_t last_ = 0;  // the entry of the last hit
  std::size_t next_ = 0;  // the entry to replace next
  Counts counts_;
};

}  // namespace gradred::device
