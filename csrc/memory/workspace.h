// Memory of each rank's device that the devices of its peers read: the way of calls on arrays in
// devices' memory past the host's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/types.h"
#include "memory/memory.h"

namespace gradred {

// This rank's part, and its own device's work on all parts. A place is the same in each rank's.
// One operation of one group of ranks uses it at a time.
class Workspace {
 public:
  using Ticket = std::array<std::byte, 128>;  // what a peer opens this rank's part by

  virtual ~Workspace() = default;
  virtual Ticket ticket() = 0;
  // Blocks, for milliseconds. Tries whether the peer's part can be read. Throws DeviceError.
  virtual void open(std::size_t rank, const Ticket& ticket) = 0;
  // Once all ranks have tried to open all parts: all could, or not, and why.
  void use() { state_ = State::kInUse; }
  void refuse(std::string why) {
    why_refused_ = std::move(why);
    state_.store(State::kRefused, std::memory_order_release);
  }
  bool in_use() const { return state_ == State::kInUse; }
  bool refused() const { return state_.load(std::memory_order_acquire) == State::kRefused; }
  const std::string& why_refused() const { return why_refused_; }
  virtual std::size_t bytes() const = 0;      // of the smallest part; once in use
  virtual bool is_of_one_device() const = 0;  // that has all parts; once in use
  // Whether its device can reduce so. May take seconds the first time. `why`: else.
  virtual bool reduces(Op op, DType dtype, std::string& why) = 0;

  // Work as a DeviceStream's: later, in this order. Into this rank's part; the same of elements
  // times a factor, as scale() of reduce/reduce.h; from any rank's part.
  virtual void put(std::size_t place, const void* source, std::size_t bytes) = 0;
  virtual void put_scaled(std::size_t place, const void* source, DType dtype, std::size_t count,
                          double factor) = 0;
  virtual void get(void* target, std::size_t rank, std::size_t place, std::size_t bytes) = 0;
  // In this rank's part, what all ranks have at that place. Op::kAvg divides by the ranks;
  // Op::kPremul is a sum of what was scaled.
  virtual void reduce(Op op, DType dtype, std::size_t place, std::size_t count) = 0;
  virtual bool ready() = 0;  // all of that is done; throws where the device has failed
  // A call was cut off: peers' devices may read this rank's part for ever. False: this rank's may
  // still write to the arrays of the call.
  virtual bool abandon() noexcept = 0;

 private:
  enum class State : std::uint8_t { kNew, kInUse, kRefused };

  std::atomic<State> state_{State::kNew};  // another thread may drive the call that settles it
  std::string why_refused_;
};

// A call on arrays in the memory of this rank's device.
struct DeviceCall {
  Workspace* workspace = nullptr;
  Stream* before = nullptr;  // its work on the arrays comes first
  const std::byte* input = nullptr;
  std::byte* result = nullptr;
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  double factor = 1.0;  // of Op::kPremul
  bool begun = false;   // its arrays are being read and written
  bool done = false;    // the result is there
};

}  // namespace gradred
