// Memory of every kind, and what is done with the bytes in it: allocate, copy, reduce, ready.
//
// The executor, the transports and their decorators touch bytes by nothing else. In host memory
// each operation is complete when it returns, and costs one comparison more than the function it
// calls. A device brings its own memory by two classes, DeviceMemory and DeviceStream:
// device/memory.h has CUDA's, csrc/tests/late_memory.h one for tests that no host thread may touch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "reduce/reduce.h"

namespace gradred {

// What a reduce step combines by. Each kind of memory has functions of its own for it.
struct Reduction {
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  const ReduceFunctions* on_host = nullptr;  // null where the type lacks the operation

  static Reduction of(Op op, DType dtype) { return {op, dtype, find_reduction(op, dtype)}; }
  std::size_t element() const { return size_of(dtype); }
};

class DeviceMemory;
class CollectiveLibrary;  // collectives.h
enum class LibraryKind : std::uint8_t;
class StreamOrder;  // order.h
class Workspace;    // workspace.h

// All that a stream of a program's had been given when this was made. Streams of any threads may be
// told to come after one.
class DeviceMoment {
 public:
  virtual ~DeviceMoment() = default;
};

// Of many copies, of which none touches what another writes.
struct CopyPart {
  void* target;
  const void* source;
  std::size_t bytes;
};

// Work on a device's memory, done in the order in which it was given, later than it was given. One
// thread at a time. Each address is the device's or the host's; what lies there stays as it is, and
// a target is not looked at, until ready() has said that all is done.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void copy(void* target, const void* source, std::size_t bytes) = 0;
  // In any order. Host memory among it is that of DeviceMemory::allocate_host().
  virtual void copy_many(std::span<const CopyPart> parts) {
    for (const CopyPart& part : parts) copy(part.target, part.source, part.bytes);
  }
  // target[i] = a[i] op b[i]; target may be a or b.
  virtual void reduce(const Reduction& reduction, void* target, const void* a, const void* b,
                      std::size_t count) = 0;
  // data[i] *= factor, or /= factor, as scale() of reduce/reduce.h.
  virtual void scale(void* data, std::size_t count, DType dtype, double factor, bool divide) = 0;
  // What follows comes after that work of the program's.
  virtual void wait_for(const DeviceMoment& moment) = 0;
  // Whether all that was given is done. Never blocks; throws where the device has failed.
  virtual bool ready() = 0;
  // A place in the order of the work: after all that was given so far. They are asked for in the
  // order in which they were made.
  virtual std::uint64_t mark() = 0;
  virtual bool has_passed(std::uint64_t mark) = 0;  // otherwise as ready()
  // Nothing more is given, until something is.
  virtual void rest() noexcept {}
};

// The memory of one device. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::string name() const = 0;                 // "CUDA device 0 (NVIDIA H200)"
  virtual std::string model() const { return name(); }  // without a number: "NVIDIA H200"
  virtual int ordinal() const { return 0; }             // as the process counts its devices
  virtual std::byte* allocate(std::size_t bytes) = 0;   // throws where there is none left
  virtual void release(std::byte* address) noexcept = 0;
  virtual std::unique_ptr<DeviceStream> open_stream() = 0;
  virtual std::shared_ptr<const DeviceMoment> moment_of(std::uint64_t stream);  // of a program's
  // Whether its streams reduce and scale; else they only copy.
  virtual bool reduces() const { return true; }
  // Host memory for its streams to copy from and to: such as they need not stop for (pinned), or,
  // while to get more of that could wait for what peers do (StreamOrder), any. Throws where there
  // is none.
  virtual std::byte* allocate_host(std::size_t bytes) { return new std::byte[bytes]; }
  virtual void release_host(std::byte* address) noexcept { delete[] address; }
  // For a group of ranks of which this is one: `bytes` that peers' devices read. Null: they cannot,
  // and why; or, without a reason, not now, since that could wait for what peers do.
  virtual std::unique_ptr<Workspace> make_workspace(std::size_t rank, std::size_t ranks,
                                                    std::size_t bytes, std::string& why);
  // Which device of the machine it is, whatever number processes have for it.
  using Identity = std::array<std::byte, 16>;
  virtual Identity identity() const { return {}; }
  // What makes collective calls on its memory by a plan of that name. Null: nothing does, and why.
  virtual CollectiveLibrary* collectives(LibraryKind kind, std::string& why);
  // As open_order(), for work that is given to the stream itself.
  virtual std::shared_ptr<StreamOrder> open_direct_order(std::uint64_t stream);
  // For a call in the order of `stream`, a program's, that takes host memory of such lengths. Null:
  // the host has to wait, and why; without a reason, this time.
  virtual std::shared_ptr<StreamOrder> open_order(std::uint64_t stream,
                                                  std::span<const std::size_t> host_bytes,
                                                  std::string& why);
};

// Where a buffer lies: in the host's memory, or in a device's, which must outlive this.
class Memory {
 public:
  constexpr Memory() = default;  // the host's
  explicit Memory(DeviceMemory& device) : device_(&device) {}

  bool is_host() const { return device_ == nullptr; }
  DeviceMemory* device() const { return device_; }  // null for the host's
  std::string name() const { return is_host() ? "the host's memory" : device_->name(); }
  bool operator==(const Memory&) const = default;

 private:
  DeviceMemory* device_ = nullptr;
};

// Borrowed bytes.
struct Buffer {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  Memory memory{};
};

// Bytes of one's own, whatever is in them at first.
class Allocation {
 public:
  Allocation() = default;
  Allocation(Memory memory, std::size_t bytes);
  ~Allocation() { release(); }
  Allocation(Allocation&& other) noexcept { swap(other); }
  Allocation& operator=(Allocation&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  // Nobody gets this memory again: something may still write there.
  void keep_for_ever() noexcept {
    address_ = nullptr;
    bytes_ = 0;
  }

 private:
  void release() noexcept;
  void swap(Allocation& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }

  Memory memory_;
  std::byte* address_ = nullptr;
  std::size_t bytes_ = 0;
};

// Host memory for copies from and to a device.
class HostAllocation {
 public:
  HostAllocation() = default;
  HostAllocation(DeviceMemory& device, std::size_t bytes)
      : device_(&device), address_(bytes > 0 ? device.allocate_host(bytes) : nullptr) {}
  HostAllocation(DeviceMemory& device, std::byte* address) : device_(&device), address_(address) {}
  ~HostAllocation() {
    if (address_ != nullptr) device_->release_host(address_);
  }
  HostAllocation(HostAllocation&& other) noexcept { swap(other); }
  HostAllocation& operator=(HostAllocation&& other) noexcept {
    swap(other);
    return *this;
  }

  std::byte* data() const { return address_; }
  // As that of Allocation.
  void keep_for_ever() noexcept { address_ = nullptr; }

 private:
  void swap(HostAllocation& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
  }

  DeviceMemory* device_ = nullptr;
  std::byte* address_ = nullptr;
};

// Work on one memory, in the order in which it is given.
class Stream {
 public:
  explicit Stream(Memory memory) {
    if (!memory.is_host()) device_ = memory.device()->open_stream();
  }
  explicit Stream(std::unique_ptr<DeviceStream> device) : device_(std::move(device)) {}

  void copy(void* target, const void* source, std::size_t bytes) {
    if (device_) [[unlikely]]
      return device_->copy(target, source, bytes);
    if (bytes > 0) std::memcpy(target, source, bytes);  // null is no memcpy's
  }
  void copy_many(std::span<const CopyPart> parts) {
    if (device_) return device_->copy_many(parts);
    for (const CopyPart& part : parts) copy(part.target, part.source, part.bytes);
  }
  void reduce(const Reduction& reduction, void* target, const void* a, const void* b,
              std::size_t count) {
    if (device_) [[unlikely]]
      return device_->reduce(reduction, target, a, b, count);
    reduction.on_host->pair(target, a, b, count);
  }
  void scale(void* data, std::size_t count, DType dtype, double factor, bool divide) {
    if (device_) [[unlikely]]
      return device_->scale(data, count, dtype, factor, divide);
    gradred::scale(data, count, dtype, factor, divide);
  }
  void wait_for(const DeviceMoment& moment) {
    if (device_) device_->wait_for(moment);
  }
  bool ready() { return !device_ || device_->ready(); }
  std::uint64_t mark() { return device_ ? device_->mark() : 0; }
  bool has_passed(std::uint64_t mark) { return !device_ || device_->has_passed(mark); }
  // Waits until ready(). False where the device has failed and may still write.
  bool finish() noexcept;
  // The same for who gives up: waits a moment, for what comes first may never end.
  bool settle() noexcept;
  // It is ready, and the call for which it was has ended, whoever still holds it.
  void rest() noexcept {
    if (device_) device_->rest();
  }

 private:
  std::unique_ptr<DeviceStream> device_;  // null for the host's
};

// Which work of a program's comes before a device's work on some arrays. The arrays of one call
// share the moments; each that goes its own way has a stream of its own come after them.
struct After {
  DeviceMemory* device = nullptr;  // null: the arrays are the host's
  std::vector<std::shared_ptr<const DeviceMoment>> moments{};

  std::shared_ptr<Stream> open_stream() const;  // null: the arrays are the host's
};

}  // namespace gradred
