// Host and device memory behind one interface: allocate, copy, reduce, and ask whether work is
// done.
//
// The executor, the transports and their decorators access bytes only through it. In host memory
// each operation is complete when it returns, and costs one comparison more than the function it
// calls. A device provides two classes, DeviceMemory and DeviceStream. device/cuda_memory.h
// implements them for CUDA, csrc/tests/late_memory.h for tests in which no host thread may touch
// the memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/copy_bytes.h"
#include "base/types.h"
#include "reduce/reduce.h"

namespace gradred {

// What a reduce step computes. Each kind of memory has its own functions for it.
struct Reduction {
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  const ReduceFunctions* on_host = nullptr;  // nullptr if the type lacks the operation

  static Reduction of(Op op, DType dtype) { return {op, dtype, find_reduction(op, dtype)}; }
  std::size_t element() const { return size_of(dtype); }
};

class DeviceMemory;
class CollectiveLibrary;  // collectives.h
class StreamOrder;        // stream_order.h
class Workspace;          // workspace.h

// Marks all work that a stream of the program had been given when the mark was created. Streams of
// any thread can wait for it.
class RecordedEvent {
 public:
  virtual ~RecordedEvent() = default;
};

// The event behind all work of a call, once the device has been given all of it. One thread sets
// it, any thread may read it.
class EndEvent {
 public:
  void set(std::shared_ptr<const RecordedEvent> event) {
    event_ = std::move(event);
    is_set_.store(true, std::memory_order_release);
  }
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  const RecordedEvent& event() const { return *event_; }  // only if is_set()
  // For a call for which only streams wait: when it has to have ended, by now_ns(). 0: never.
  void set_deadline(std::uint64_t ns) { deadline_ns_.store(ns, std::memory_order_relaxed); }
  std::uint64_t deadline_ns() const { return deadline_ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> deadline_ns_{0};
  std::shared_ptr<const RecordedEvent> event_;
  std::atomic<bool> is_set_{false};
};

// One of many copies. None of them reads or writes what another one writes.
struct CopyPart {
  void* target;
  const void* source;
  std::size_t bytes;
};

// A stream of work on a device's memory. The work is done asynchronously, in the order in which it
// was enqueued. One thread at a time may use it. Addresses are of the device or of the host. Until
// ready() or has_passed() reports completion, nothing else may change the sources or access the
// targets.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;
  virtual void copy(void* target, const void* source, std::size_t bytes) = 0;
  // Copies in any order. Host memory among the parts must come from DeviceMemory::allocate_host().
  virtual void copy_many(std::span<const CopyPart> parts) {
    for (const CopyPart& part : parts) copy(part.target, part.source, part.bytes);
  }
  // target[i] = a[i] op b[i]; target may be a or b.
  virtual void reduce(const Reduction& reduction, void* target, const void* a, const void* b,
                      std::size_t count) = 0;
  // data[i] *= factor, or data[i] /= factor, as scale() of reduce/reduce.h.
  virtual void scale(void* data, std::size_t count, DType dtype, double factor, bool divide) = 0;
  // Makes all later work wait for that work of the program.
  virtual void wait_for(const RecordedEvent& event) = 0;
  // Whether all enqueued work is done. Never blocks. Throws if the device has failed.
  virtual bool ready() = 0;
  // Returns a mark after all work enqueued so far. Marks must be tested in the order in which they
  // were created.
  virtual std::uint64_t mark() = 0;
  virtual bool has_passed(std::uint64_t mark) = 0;  // throws as ready()
  // Marks all work enqueued so far. Returns nullptr if the device has not been given all of it yet.
  virtual std::shared_ptr<const RecordedEvent> event() { return nullptr; }
  // A hint that no more work follows for now.
  virtual void rest() noexcept {}
};

// The memory of one device. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual std::string name() const = 0;                // "CUDA device 0 (NVIDIA H200)"
  virtual int ordinal() const { return 0; }            // the process's number of the device
  virtual std::byte* allocate(std::size_t bytes) = 0;  // throws if none is left
  virtual void release(std::byte* address) noexcept = 0;
  virtual std::unique_ptr<DeviceStream> open_stream() = 0;
  // For a stream of the program.
  virtual std::shared_ptr<const RecordedEvent> event_of(std::uint64_t stream);
  // Whether a call on this input, with this reduction if there is one, should begin later: it needs
  // something that the device cannot prepare while work that it was given (EnqueuedWork) waits.
  virtual bool prepares_later(const void* /*input*/, std::size_t /*bytes*/,
                              const Reduction* /*reduction*/) {
    return false;
  }
  // Makes later work of a stream of the program wait for an event.
  virtual void precede(const RecordedEvent& event, std::uint64_t stream);
  // Whether its streams can reduce and scale. If not, they only copy.
  virtual bool reduces() const { return true; }
  // Allocates host memory for its streams' copies, pinned so that copies are asynchronous. While
  // allocating pinned memory could wait for the progress of peers (StreamOrder), the memory may be
  // pageable. Throws if no memory is available.
  virtual std::byte* allocate_host(std::size_t bytes) { return new std::byte[bytes]; }
  virtual void release_host(std::byte* address) noexcept { delete[] address; }
  // Creates a workspace for a group of `ranks` ranks, of which this is `rank`: `bytes` bytes that
  // peers' devices can read. Returns nullptr and `why` if that is impossible. Returns nullptr
  // without a reason if it is impossible now, since it could wait for the progress of peers.
  virtual std::unique_ptr<Workspace> make_workspace(std::size_t rank, std::size_t ranks,
                                                    std::size_t bytes, std::string& why);
  // Identifies the device on the machine, whatever number processes use for it.
  using Identity = std::array<std::byte, 16>;
  virtual Identity identity() const { return {}; }
  // Returns the library that carries out collective calls on this memory by this plan.
  // Returns nullptr and `why` if there is none.
  virtual CollectiveLibrary* collectives(std::string_view plan, std::string& why);
  // As open_order(), but the work is enqueued in the program's stream itself.
  virtual std::shared_ptr<StreamOrder> open_direct_order(std::uint64_t stream);
  // Opens an order for a call in the program's `stream` that uses host memory of such lengths.
  // Returns nullptr and `why` if such calls need a waiting host. Returns nullptr without a reason
  // if only this call does.
  virtual std::shared_ptr<StreamOrder> open_order(std::uint64_t stream,
                                                  std::span<const std::size_t> host_bytes,
                                                  std::string& why);
};

// The memory in which a buffer lies: the host's, or that of a device. The caller keeps the device
// alive as long as this object.
class Memory {
 public:
  constexpr Memory() = default;  // the host's memory
  explicit Memory(DeviceMemory& device) : device_(&device) {}

  bool is_host() const { return device_ == nullptr; }
  DeviceMemory* device() const { return device_; }  // nullptr for the host's memory
  std::string name() const { return is_host() ? "the host's memory" : device_->name(); }
  bool operator==(const Memory&) const = default;

 private:
  DeviceMemory* device_ = nullptr;
};

// A borrowed buffer.
struct Buffer {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  Memory memory{};
};

// An owned buffer. Its content is undefined at first.
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
  // Leaks the memory, because a device or a peer may still write to it.
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

// Owned host memory for copies to and from a device.
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
  // As Allocation::keep_for_ever().
  void keep_for_ever() noexcept { address_ = nullptr; }

 private:
  void swap(HostAllocation& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
  }

  DeviceMemory* device_ = nullptr;
  std::byte* address_ = nullptr;
};

// A stream of work on one memory, done in order.
class Stream {
 public:
  explicit Stream(Memory memory) {
    if (!memory.is_host()) device_ = memory.device()->open_stream();
  }
  explicit Stream(std::unique_ptr<DeviceStream> device) : device_(std::move(device)) {}

  void copy(void* target, const void* source, std::size_t bytes) {
    if (device_) [[unlikely]]
      return device_->copy(target, source, bytes);
    if (bytes > 0) copy_bytes(target, source, bytes);  // memcpy must not get nullptr
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
  void wait_for(const RecordedEvent& event) {
    if (device_) device_->wait_for(event);
  }
  bool ready() { return !device_ || device_->ready(); }
  std::uint64_t mark() { return device_ ? device_->mark() : 0; }
  bool has_passed(std::uint64_t mark) { return !device_ || device_->has_passed(mark); }
  std::shared_ptr<const RecordedEvent> event() { return device_ ? device_->event() : nullptr; }
  // Waits until ready(). Returns false if the device has failed and may still write.
  bool finish() noexcept;
  // The same for a caller that gives up: waits at most half a second, since earlier work may never
  // end.
  bool settle() noexcept;
  // Called when the call that used the stream has ended, even if other objects still hold the
  // stream.
  void rest() noexcept {
    if (device_) device_->rest();
  }

 private:
  std::unique_ptr<DeviceStream> device_;  // nullptr for the host's memory
};

// Which work of the program must precede a device's work on some arrays. The arrays of one call
// share the events. open_stream() creates a stream that waits for them.
struct After {
  DeviceMemory* device = nullptr;  // nullptr: the arrays are in host memory
  std::vector<std::shared_ptr<const RecordedEvent>> events{};

  std::shared_ptr<Stream> open_stream() const;  // nullptr: the arrays are in host memory
};

}  // namespace gradred
