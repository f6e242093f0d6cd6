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
#include "memory/shared_arrays.h"

namespace gradred {

// The work of one call that a device is given at once. On the device it waits for the host at two
// places. The host lets it go on by storing a word, so the thread that does so calls no driver,
// which the program may keep busy until this very work is done. Destroying the object lets all of
// it go on.
class EnqueuedWork {
 public:
  virtual ~EnqueuedWork() = default;
  // Gives the device what `work` enqueues, and then sets `end`, which comes after end(). Other
  // threads may call the next four functions from before that on.
  virtual void enqueue(const std::function<void()>& work, EndEvent& end) = 0;
  virtual bool input_is_there() = 0;  // all work that had to come before is done
  virtual void begin() noexcept = 0;  // the peers' inputs are there
  virtual bool is_done() = 0;         // this rank's device has done its share
  virtual void end() noexcept = 0;    // the peers' devices have done theirs
};

// The rest of a call whose work this rank's device has been given. Destroying it lets the device go
// on, whatever the peers have done.
class EnqueuedCall {
 public:
  virtual ~EnqueuedCall() = default;
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
  virtual ~Workspace() = default;
  virtual Ticket ticket() = 0;
  // Runs `open`, which opens exported memory of peers. Returns false without running it if it could
  // wait for the progress of peers.
  virtual bool attempt(const std::function<void()>& open) = 0;
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
  // Facts that determine the way of a call. Those of other ranks are valid once in use.
  struct Facts {
    std::size_t bytes = 0;         // of the smallest part
    bool is_of_one_device = true;  // all parts are on it
    // The processes that use this rank's device compute one at a time.
    bool is_used_by_turns = false;
    std::size_t most_targets = 1;  // of one reduction
  };
  const Facts& facts() const { return facts_; }
  // Whether the device can carry out such reductions now; if not, sets `why`. May take seconds the
  // first time.
  virtual bool reduces(Op op, DType dtype, std::string& why) = 0;

  virtual SharedArrays& arrays() = 0;  // that peers' devices reach where they lie

  // The address, for this rank's device, of an offset in a rank's part.
  virtual std::byte* part(std::size_t rank, std::size_t place) = 0;

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
  virtual std::unique_ptr<EnqueuedWork> give(Stream& before) = 0;
  // Whether work of give() may still wait for peers, for any call of this process on this device.
  virtual bool has_enqueued_work() = 0;
  // Called when a call was cut off. Peers' devices may read this rank's part at any later time.
  // Waits half a second for this rank's device. Returns false if it may still write to the arrays
  // of the call.
  virtual bool abandon() noexcept = 0;
  // The part of abandon() that does not wait: no peer's memory, and none of this rank's, is freed.
  virtual void keep_all() noexcept = 0;

 protected:
  Facts facts_;

 private:
  enum class State : std::uint8_t { kNew, kInUse, kRefused };

  // Read by other threads than the one that advances the call.
  std::atomic<State> state_{State::kNew};
  std::string why_refused_;
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
  EndEvent* given = nullptr;
  std::unique_ptr<EnqueuedCall> rest{};  // after that
  bool begun = false;                    // the arrays are being read and written
  bool is_open = false;                  // also by peers' devices
  bool done = false;                     // the result is complete
};

}  // namespace gradred
