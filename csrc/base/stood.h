// Where the time of an operation goes from its start to its end, for a profile.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace gradred {

// What an operation stands for that has not ended; the last two are no such, but have their time.
enum class StoodFor : std::uint8_t {
  kLine,    // those before it, the MPI, or somebody to go on after its start
  kPeers,   // a word of a peer's
  kStream,  // the program's work on the input, and copies of it
  kDevice,  // its own work there
  kUnseen,  // for a stream or a device after the last look that found nothing: the most that it has
            // lain there before somebody saw it
  kSteps,   // it does not stand: it is made, or goes on
};
inline constexpr std::size_t kStoodSums = 6;
inline constexpr const char* kStoodNames[kStoodSums] = {"line",   "peers",  "stream",
                                                        "device", "unseen", "steps"};
using Stood = std::array<std::uint64_t, kStoodSums>;  // nanoseconds, by StoodFor

// Follows one operation. For the thread that advances it.
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
  // It stands for this from now on. `same`: as before, for the same.
  void step_ends(StoodFor what, bool same) {
    settle(same);
    what_ = what;
    stands_ = true;
  }
  // It has ended.
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
  bool stands_ = false;  // it has stopped before
};

}  // namespace gradred
