// Device memory of each rank that the devices of its peers read and write. It carries calls on
// arrays in device memory without a detour through host memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "memory/memory.h"

namespace gradred {

// The place of an array that peers can reach, in one 64-bit word: the number of an allocation that
// its process exports, and the offset in it.
class SharedPlace {
 public:
  constexpr SharedPlace() = default;  // no place
  constexpr explicit SharedPlace(std::uint64_t word) : word_(word) {}
  constexpr SharedPlace(std::uint64_t allocation, std::uint64_t offset)
      : word_(allocation << kOffsetBits | offset) {}

  constexpr std::uint64_t word() const { return word_; }
  constexpr std::uint64_t allocation() const { return word_ >> kOffsetBits; }  // never 0
  constexpr std::uint64_t offset() const { return word_ & ((std::uint64_t{1} << kOffsetBits) - 1); }
  constexpr explicit operator bool() const { return word_ != 0; }
  // Numbers of allocations: first those of gradred, from kFirstOfPrograms on those of the program.
  static constexpr std::uint64_t kFirstOfPrograms = std::uint64_t{1} << 23, kEnd = 1 << 24;
  constexpr bool is_programs() const { return allocation() >= kFirstOfPrograms; }

 private:
  static constexpr int kOffsetBits = 40;  // more bytes than any device has
  std::uint64_t word_ = 0;
};

// The work of one call that a device is given at once. On the device it waits for the host at two
// places. The host lets it go on by storing a word, so the thread that does so calls no driver,
// which the program may keep busy until this very work is done. Destroying the object lets all of
// it go on.
class GivenWork {
 public:
  virtual ~GivenWork() = default;
  // Gives the device what `work` enqueues, and then sets `end`, which comes after end(). Other
  // threads may call the next four functions from before that on.
  virtual void enqueue(const std::function<void()>& work, GivenEnd& end) = 0;
  virtual bool input_is_there() = 0;  // all work that had to come before is done
  virtual void begin() noexcept = 0;  // the peers' inputs are there
  virtual bool is_done() = 0;         // this rank's device has done its share
  virtual void end() noexcept = 0;    // the peers' devices have done theirs
};

// The rest of a call whose work this rank's device has been given. Destroying it lets the device go
// on, whatever the peers have done.
class GivenRest {
 public:
  virtual ~GivenRest() = default;
  // Publishes how far this rank is, and lets its device go on as far as theirs are. If a peer
  // has failed or the deadline is over, lets the device go on at once. Calls no driver. Returns
  // whether nothing is left to do.
  virtual bool pass_on() noexcept = 0;
  // The same. Returns whether the devices of all ranks are done; throws if it has failed.
  virtual bool is_over() = 0;
  virtual void give_up(const std::exception_ptr& reason) noexcept = 0;  // the peers get an error
  virtual bool spins() const = 0;  // whether each rank has a core of its own
};

// This rank's part, and the work of its device on all parts and on other memory that peers export.
// At most one operation of one group of ranks uses it at a time.
class Workspace {
 public:
  using Ticket = std::array<std::byte, 160>;  // what a peer needs to open this rank's memory
  struct Array {
    const void* at = nullptr;
    std::size_t bytes = 0;  // 0: no such array
    bool operator==(const Array&) const = default;
  };
  struct Places {
    SharedPlace input{}, result{};
  };

  virtual ~Workspace() = default;
  virtual Ticket ticket() = 0;
  // Runs `open`, which opens exported memory of peers. Returns false without running it if it could
  // wait for the progress of peers.
  virtual bool attempt(const std::function<void()>& open) { return open(), true; }
  // Called within attempt(). Opens the part of a peer and tests whether it can be read. Blocks for
  // some milliseconds. Throws DeviceError.
  virtual void open(std::size_t rank, const Ticket& ticket) = 0;
  // Called once all ranks have tried to open all parts: use() if all could, refuse() otherwise.
  void use() { state_ = State::kInUse; }
  void refuse(std::string why) {
    why_refused_ = std::move(why);
    state_.store(State::kRefused, std::memory_order_release);
  }
  bool in_use() const { return state_ == State::kInUse; }
  bool refused() const { return state_.load(std::memory_order_acquire) == State::kRefused; }
  const std::string& why_refused() const { return why_refused_; }
  virtual std::size_t bytes() const = 0;      // size of the smallest part; valid once in use
  virtual bool is_of_one_device() const = 0;  // all parts are on it; valid once in use
  // Whether the processes that use this rank's device compute one at a time.
  virtual bool is_used_by_turns() const { return false; }
  // Whether the device can carry out such reductions now; if not, sets `why`. May take seconds the
  // first time.
  virtual bool reduces(Op op, DType dtype, std::string& why) = 0;
  virtual std::size_t most_targets() const { return 1; }  // targets of one reduction

  // Returns the places of a call's arrays on this rank, if they lie in memory that can be exported.
  // Peers then reach them directly. Other arrays have no place and go through the part.
  virtual Places find(Array /*input*/, Array /*result*/) { return {}; }
  // From now on exports only arrays that gradred has allocated.
  void keep_to_own_arrays() { exports_programs_ = false; }
  bool exports_programs() const { return exports_programs_ && takes_programs(); }
  // Called within attempt(), when nothing writes to the array any more.
  virtual Ticket ticket_of(SharedPlace place);
  // As open(), for the allocation that holds a peer's place, when it is needed for the first time.
  virtual void open_array(std::size_t rank, SharedPlace place, const Ticket& ticket);
  // Allocations that peers have opened and the program has freed since. take_ended() returns some
  // that peers are to close now.
  virtual bool has_ended() { return false; }
  virtual std::vector<std::uint64_t> take_ended(std::size_t /*most*/) { return {}; }
  virtual void close_array(std::size_t /*rank*/, std::uint64_t /*allocation*/) {}
  // Records that all peers have opened the allocation of `place`, or that from now on no rank uses
  // arrays directly.
  virtual void set_known(SharedPlace /*place*/) {}
  virtual bool is_known(SharedPlace /*place*/) { return false; }
  void refuse_arrays(std::string why) { why_no_arrays_ = std::move(why); }
  bool takes_arrays() const { return why_no_arrays_.empty(); }
  const std::string& why_no_arrays() const { return why_no_arrays_; }
  // As refuse_arrays(), for arrays that programs have allocated.
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
  // Records that a call has used arrays directly. `programs`: this rank's arrays were allocated by
  // the program.
  void take_arrays(bool programs) { (programs ? programs_taken_ : arrays_taken_) = true; }
  bool arrays_taken() const { return arrays_taken_; }
  bool programs_taken() const { return programs_taken_; }

  // Addresses for this rank's device: of an offset in a rank's part, and of a rank's array.
  virtual std::byte* part(std::size_t rank, std::size_t place) = 0;
  virtual std::byte* array(std::size_t rank, SharedPlace place);

  // Enqueues work, which is done asynchronously and in order, as in a DeviceStream.
  virtual void copy(void* target, const void* source, std::size_t bytes) = 0;
  // Copies elements times a factor, as scale() of reduce/reduce.h.
  virtual void copy_scaled(void* target, const void* source, DType dtype, std::size_t count,
                           double factor) = 0;
  // Writes the reduction of all inputs to each target. A target may be one of the inputs. Op::kAvg
  // divides by the number of inputs. Op::kPremul adds inputs that have been scaled already.
  virtual void reduce(Op op, DType dtype, std::span<void* const> targets,
                      std::span<const void* const> inputs, std::size_t count) = 0;
  virtual bool ready() = 0;  // whether all work is done; throws if the device has failed
  // Begins work behind all work of `before`. Returns nullptr if the device cannot wait for the
  // host, or not now.
  virtual std::unique_ptr<GivenWork> give(Stream& /*before*/) { return nullptr; }
  // Whether work of give() may still wait for peers, for any call of this process on this device.
  virtual bool has_given_work() { return false; }
  // Called when a call was cut off. Peers' devices may read this rank's part at any later time.
  // Waits half a second for this rank's device. Returns false if it may still write to the arrays
  // of the call.
  virtual bool abandon() noexcept = 0;
  // The part of abandon() that does not wait: no peer's memory, and none of this rank's, is freed.
  virtual void keep_all() noexcept {}
  // Closes peers' allocations that their programs made and that no call uses any more.
  virtual void let_go_of_programs() noexcept {}

 private:
  enum class State : std::uint8_t { kNew, kInUse, kRefused };

  // Read by other threads than the one that advances the call.
  std::atomic<State> state_{State::kNew};
  std::string why_refused_;
  std::string why_no_arrays_, why_no_programs_;
  std::atomic<bool> takes_programs_{true};  // also read by threads that make calls
  bool exports_programs_ = true;
  std::atomic<bool> arrays_taken_{false}, programs_taken_{false};
};

// A call on arrays in the memory of this rank's device.
struct DeviceCall {
  Workspace* workspace = nullptr;
  Stream* before = nullptr;  // stream whose work on the arrays comes first
  const std::byte* input = nullptr;
  std::byte* result = nullptr;
  SharedPlace input_place{}, result_place{};  // of the two arrays, if peers can reach them
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  double factor = 1.0;  // for Op::kPremul
  // Set once all work has been given to the device; nullptr if nothing asks for it.
  GivenEnd* given = nullptr;
  std::unique_ptr<GivenRest> rest{};  // after that
  bool begun = false;                 // the arrays are being read and written
  bool is_open = false;               // also by peers' devices
  bool done = false;                  // the result is complete
};

}  // namespace gradred
