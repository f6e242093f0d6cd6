// Breaks down the time from start to end of an operation by what it waited for, for profiles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace gradred {

// What an unfinished operation waits for. The last two values are not reasons to wait, but time is
// charged to them as well.
enum class StoodFor : std::uint8_t {
  kLine,    // earlier operations, the MPI, or a thread that advances the operation
  kPeers,   // a counter of a peer
  kStream,  // work of the program on the input, and copies of it
  kDevice,  // gradred's own work on the device
  // Time after the last look that found a stream or device busy. It bounds how long the work was
  // complete before a thread noticed.
  kUnseen,
  kSteps,  // no wait: the operation is created or advances
};
inline constexpr std::size_t kStoodSums = 6;
inline constexpr const char* kStoodNames[kStoodSums] = {"line",   "peers",  "stream",
                                                        "device", "unseen", "steps"};
using Stood = std::array<std::uint64_t, kStoodSums>;  // nanoseconds per StoodFor

// Follows one operation. Used by the thread that advances it.
class StoodClock {
 public:
  explicit StoodClock(std::uint64_t since_ns) : changed_ns_(since_ns) {}

  void step_begins() {
    const std::uint64_t now = now_ns();
    if (stands_) {
      gap_ns_ = now - changed_ns_;
      changed_ns_ = now;
    }
  }
  // The operation waits for `what` from now on. `same`: it waits for the same thing as before.
  void step_ends(StoodFor what, bool same) {
    settle(same);
    what_ = what;
    stands_ = true;
  }
  // The operation has ended.
  const Stood& ends() {
    settle(false);
    return stood_;
  }
  StoodFor what() const { return what_; }

 private:
  void add(StoodFor what, std::uint64_t ns) { stood_[static_cast<std::size_t>(what)] += ns; }
  void settle(bool same) {
    const std::uint64_t now = now_ns();
    const bool polls = what_ == StoodFor::kStream || what_ == StoodFor::kDevice;
    add(polls && !same ? StoodFor::kUnseen : what_, gap_ns_);
    gap_ns_ = 0;
    add(StoodFor::kSteps, now - changed_ns_);
    changed_ns_ = now;
  }

  Stood stood_{};
  std::uint64_t changed_ns_, gap_ns_ = 0;
  StoodFor what_ = StoodFor::kLine;
  bool stands_ = false;  // whether the operation has waited before
};

}  // namespace gradred
