// Keeps calls in the order of a program's streams without making the host wait for their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "memory/memory.h"

namespace gradred {

// The work of one call in the order of a stream. Usually this means copies between device and host
// memory. They are enqueued on the device when the call is made, and those of the result are held
// back until the result is there. So the thread that advances the call never calls the driver,
// which may be waiting for what the call itself holds up.
class StreamOrder {
 public:
  explicit StreamOrder(std::vector<HostAllocation> host = {}) : host_(std::move(host)) {}
  virtual ~StreamOrder() = default;
  // Makes the copies wait for all work that `stream`, a stream of the program on that device, has
  // been given so far.
  virtual void follow(DeviceMemory& device, std::uint64_t stream) = 0;
  // For open_direct_order(): the program's stream, in which the work itself is enqueued.
  virtual std::optional<std::uint64_t> stream() const { return std::nullopt; }
  // For open_direct_order(): marks the end of the work enqueued in the stream so far. Returns false
  // without a mark if the stream is being captured.
  virtual bool mark() { return false; }
  virtual bool has_passed() { return true; }  // whether work up to the mark is done
  // Whether has_passed() calls the driver, which may block until the stream continues.
  virtual bool asks_driver() const { return false; }
  // Announces that work enqueued in the stream from now on may wait for peers.
  virtual void begin() {}
  // The next four functions are for orders of open_order(). take_host() returns the buffers of the
  // requested lengths, one after the other.
  HostAllocation take_host() { return std::move(host_.at(taken_++)); }
  // A stream whose copies are enqueued at once.
  virtual std::unique_ptr<DeviceStream> input() = 0;
  // Enqueues held copies of all these bytes, in pieces. In the returned stream, copy() of a part
  // releases the pieces that end within the part. Parts must be copied in order, without gaps.
  virtual std::unique_ptr<DeviceStream> result(void* target, const void* source, std::size_t bytes,
                                               std::size_t piece) = 0;
  // Releases all held copies, whatever their content.
  virtual void release() noexcept = 0;
  // Called after result(): makes later work of `stream` wait for the result.
  virtual void precede(std::uint64_t stream) = 0;
  // Throws DeviceError if the device has failed. The thread that advances the call must not call
  // it.
  virtual void check() = 0;

 private:
  std::vector<HostAllocation> host_;
  std::size_t taken_ = 0;
};

}  // namespace gradred
