// The order of a program's streams in calls whose end the host does not wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "memory/memory.h"

namespace gradred {

// The work of one call in the order of a stream. Mostly copies between a device and the host's
// memory: they are given to the device when
// the call is made, and those of the result are held back until it is there. So whoever carries the
// call on asks nothing of the driver, which may be waiting for what the call itself holds up.
class StreamOrder {
 public:
  explicit StreamOrder(std::vector<HostAllocation> host = {}) : host_(std::move(host)) {}
  virtual ~StreamOrder() = default;
  // All that `stream`, a program's on that device, has been given so far comes before the copies.
  virtual void follow(DeviceMemory& device, std::uint64_t stream) = 0;
  // The program's stream, where the work itself is given to it (DeviceMemory::open_direct_order()).
  virtual std::optional<std::uint64_t> stream() const { return std::nullopt; }
  // Of such a one: marks the end of what the stream has been given by now. False: it is being
  // captured, and does nothing of it now.
  virtual bool mark() { return false; }
  virtual bool has_passed() { return true; }  // the mark
  // Whether has_passed() asks the driver, which may let nobody in until the stream goes on.
  virtual bool asks_driver() const { return false; }
  // What the stream is given from now on may wait for peers.
  virtual void begin() {}
  // The next four are for the others.
  // Of the lengths with which it was opened, the next; once each.
  HostAllocation take_host() { return std::move(host_.at(taken_++)); }
  // Copies as it is told to, at once.
  virtual std::unique_ptr<DeviceStream> input() = 0;
  // Gives the device copies of all these bytes, in pieces; a later copy() of a part lets go those
  // of the pieces that end with it. Parts come one after the other, from the beginning to the end.
  virtual std::unique_ptr<DeviceStream> result(void* target, const void* source, std::size_t bytes,
                                               std::size_t piece) = 0;
  // Lets go all copies, whatever they copy.
  virtual void release() noexcept = 0;
  // After result(): what `stream` is given from now on comes after the result.
  virtual void precede(std::uint64_t stream) = 0;
  // Throws DeviceError where the device has failed. Not for who carries the call on.
  virtual void check() = 0;

 private:
  std::vector<HostAllocation> host_;
  std::size_t taken_ = 0;
};

}  // namespace gradred
