// Breaks down the time from start to end of an operation by what it waited for, for profiles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace gradred {

// What an unfinished operation waits for. The last two values are not reasons to wait, but time is
// charged to them as well.
enum class WaitCause : std::uint8_t {
  kLine,    // earlier operations, the MPI, or a thread that advances the operation
  kPeers,   // a counter of a peer
  kStream,  // work of the program on the input, and copies of it
  kDevice,  // gradred's own work on the device
  // Time after the last look that found a stream or device busy. It bounds how long the work was
  // complete before a thread noticed.
  kUnseen,
  kSteps,  // no wait: the operation is created or advances
};
inline constexpr std::size_t kWaitCauses = 6;
inline constexpr const char* kWaitCauseNames[kWaitCauses] = {"line",   "peers",  "stream",
                                                             "device", "unseen", "steps"};
using WaitTimes = std::array<std::uint64_t, kWaitCauses>;  // nanoseconds per WaitCause

// Follows one operation. Used by the thread that advances it.
class WaitClock {
 public:
  explicit WaitClock(std::uint64_t since_ns) : changed_ns_(since_ns) {}

  void step_begins() {
    const std::uint64_t now = now_ns();
    if (has_waited_) {
      gap_ns_ = now - changed_ns_;
      changed_ns_ = now;
    }
  }
  // The operation waits for `what` from now on. `same`: it waits for the same thing as before.
  void step_ends(WaitCause what, bool same) {
    settle(same);
    what_ = what;
    has_waited_ = true;
  }
  // The operation has ended.
  const WaitTimes& ends() {
    settle(false);
    return waits_;
  }
  WaitCause what() const { return what_; }

 private:
  void add(WaitCause what, std::uint64_t ns) { waits_[static_cast<std::size_t>(what)] += ns; }
  void settle(bool same) {
    const std::uint64_t now = now_ns();
    const bool polls = what_ == WaitCause::kStream || what_ == WaitCause::kDevice;
    add(polls && !same ? WaitCause::kUnseen : what_, gap_ns_);
    gap_ns_ = 0;
    add(WaitCause::kSteps, now - changed_ns_);
    changed_ns_ = now;
  }

  WaitTimes waits_{};
  std::uint64_t changed_ns_, gap_ns_ = 0;
  WaitCause what_ = WaitCause::kLine;
  bool has_waited_ = false;  // whether the operation has waited before
};

}  // namespace gradred
