// Memory of each rank's device that the devices of its peers read and write: the way of calls on
// arrays in devices' memory past the host's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "memory/memory.h"

namespace gradred {

// Where an array lies that peers can reach: in which of the allocations that its process exports,
// and how far from its beginning. In one word.
class SharedPlace {
 public:
  constexpr SharedPlace() = default;  // nowhere
  constexpr explicit SharedPlace(std::uint64_t word) : word_(word) {}
  constexpr SharedPlace(std::uint64_t allocation, std::uint64_t offset)
      : word_(allocation << kOffsetBits | offset) {}

  constexpr std::uint64_t word() const { return word_; }
  constexpr std::uint64_t allocation() const { return word_ >> kOffsetBits; }  // never 0
  constexpr std::uint64_t offset() const { return word_ & ((std::uint64_t{1} << kOffsetBits) - 1); }
  constexpr explicit operator bool() const { return word_ != 0; }
  // Numbers of allocations: those of gradred's own, and from a half on those of the program's.
  static constexpr std::uint64_t kFirstOfPrograms = std::uint64_t{1} << 23, kEnd = 1 << 24;
  constexpr bool is_programs() const { return allocation() >= kFirstOfPrograms; }

 private:
  static constexpr int kOffsetBits = 40;  // of more bytes than any device has
  std::uint64_t word_ = 0;
};

// This rank's part, and its own device's work on all parts and on what else peers export. One
// operation of one group of ranks uses it at a time.
class Workspace {
 public:
  using Ticket = std::array<std::byte, 160>;  // what a peer opens this rank's memory by
  struct Array {
    const void* at = nullptr;
    std::size_t bytes = 0;  // none: no such array
    bool operator==(const Array&) const = default;
  };
  struct Places {
    SharedPlace input{}, result{};
  };

  virtual ~Workspace() = default;
  virtual Ticket ticket() = 0;
  // Opens what peers export, unless that could wait for what peers do. False: not now.
  virtual bool attempt(const std::function<void()>& open) { return open(), true; }
  // In it. Blocks, for milliseconds. Tries whether the peer's part can be read. Throws DeviceError.
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
  // Whether of the processes that use this rank's device only one computes at a time.
  virtual bool is_used_by_turns() const { return false; }
  // Whether its device can reduce so, by now. May take seconds the first time. `why`: else.
  virtual bool reduces(Op op, DType dtype, std::string& why) = 0;
  virtual std::size_t most_targets() const { return 1; }  // of a reduction

  // A call's arrays on this rank that lie in memory which can be exported: peers need no part to
  // reach them. Nowhere: they do.
  virtual Places find(Array /*input*/, Array /*result*/) { return {}; }
  // Only of arrays that gradred has allocated, from now on.
  void keep_to_own_arrays() { exports_programs_ = false; }
  bool exports_programs() const { return exports_programs_ && takes_programs(); }
  // In attempt(), when nobody writes to the array any longer.
  virtual Ticket ticket_of(SharedPlace place);
  // As open(): the allocation that a peer's place is in, the first time that it is.
  virtual void open_array(std::size_t rank, SharedPlace place, const Ticket& ticket);
  // Allocations that peers have opened and that the program has freed since: some that they are to
  // close now.
  virtual bool has_ended() { return false; }
  virtual std::vector<std::uint64_t> take_ended(std::size_t /*most*/) { return {}; }
  virtual void close_array(std::size_t /*rank*/, std::uint64_t /*allocation*/) {}
  // All peers have opened what place is in, or none reads arrays where they lie from now on.
  virtual void set_known(SharedPlace /*place*/) {}
  virtual bool is_known(SharedPlace /*place*/) { return false; }
  void refuse_arrays(std::string why) { why_no_arrays_ = std::move(why); }
  bool takes_arrays() const { return why_no_arrays_.empty(); }
  const std::string& why_no_arrays() const { return why_no_arrays_; }
  // Likewise of those that programs have allocated, alone.
  void refuse_programs(std::string why) {
    if (!takes_programs()) return;
    why_no_programs_ = std::move(why);
    takes_programs_.store(false, std::memory_order_release);
  }
  bool takes_programs() const { return takes_programs_.load(std::memory_order_acquire); }
  const std::string& why_no_programs() const { return why_no_programs_; }
  bool takes(SharedPlace place) const {
    return takes_arrays() && (!place.is_programs() || takes_programs());
  }
  // Where some call has taken them; `programs`: this rank's are of the program's.
  void take_arrays(bool programs) { (programs ? programs_taken_ : arrays_taken_) = true; }
  bool arrays_taken() const { return arrays_taken_; }
  bool programs_taken() const { return programs_taken_; }

  // As this rank's device finds them: what is at a place of a rank's part, and a rank's array.
  virtual std::byte* part(std::size_t rank, std::size_t place) = 0;
  virtual std::byte* array(std::size_t rank, SharedPlace place);

  // Work as a DeviceStream's: later, in this order.
  virtual void copy(void* target, const void* source, std::size_t bytes) = 0;
  // Elements times a factor, as scale() of reduce/reduce.h.
  virtual void copy_scaled(void* target, const void* source, DType dtype, std::size_t count,
                           double factor) = 0;
  // Each target gets the reduction of all inputs, and may be one of them. Op::kAvg divides by the
  // inputs; Op::kPremul is a sum of what was scaled.
  virtual void reduce(Op op, DType dtype, std::span<void* const> targets,
                      std::span<const void* const> inputs, std::size_t count) = 0;
  virtual bool ready() = 0;  // all of that is done; throws where the device has failed
  // A call was cut off: peers' devices may read this rank's part for ever. False: this rank's may
  // still write to the arrays of the call.
  virtual bool abandon() noexcept = 0;
  // Of peers' allocations that programs have made, which no call takes any longer.
  virtual void let_go_of_programs() noexcept {}

 private:
  enum class State : std::uint8_t { kNew, kInUse, kRefused };

  std::atomic<State> state_{State::kNew};  // another thread may drive the call that settles it
  std::string why_refused_;
  std::string why_no_arrays_, why_no_programs_;
  std::atomic<bool> takes_programs_{true};  // who makes a call asks, too
  bool exports_programs_ = true;
  std::atomic<bool> arrays_taken_{false}, programs_taken_{false};
};

// A call on arrays in the memory of this rank's device.
struct DeviceCall {
  Workspace* workspace = nullptr;
  Stream* before = nullptr;  // its work on the arrays comes first
  const std::byte* input = nullptr;
  std::byte* result = nullptr;
  SharedPlace input_place{}, result_place{};  // of these, as far as peers may reach them
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  double factor = 1.0;   // of Op::kPremul
  bool begun = false;    // its arrays are being read and written
  bool is_open = false;  // by peers' devices, too
  bool done = false;     // the result is there
};

}  // namespace gradred
