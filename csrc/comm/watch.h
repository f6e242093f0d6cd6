// No wait is silent: who waits long says so, and gives up when the time allowed is over.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/errors.h"
#include "base/status.h"

namespace gradred {

// In nanoseconds; 0 is never.
struct WaitLimits {
  std::atomic<std::uint64_t> warn{60'000'000'000};
  std::atomic<std::uint64_t> timeout{0};
};
WaitLimits& wait_limits();

void print_report(const std::string& text);  // to stderr, in one piece

// Of one wait. `about` describes it: text(seconds) says who is missing, reports() whether it is for
// this rank to print that, so that there is one report per host.
class Watch {
 public:
  enum class Of : std::uint8_t {
    kWait,         // shows what this process waits for, reports it, and gives up
    kPatientWait,  // never gives up
    kFlight,       // of an operation, for which nobody need be waiting: only reports
  };

  explicit Watch(Of what = Of::kWait) : what_(what) {}
  ~Watch() {
    if (next_post_ > kFirstPost && !timed_out_) clear_status();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  template <class About>
  void check(const About& about) {
    const std::uint64_t now = now_ns();
    if (now < next_look_) return;
    next_look_ = now + kEvery;
    if (begin_ == 0) {
      begin_ = now;
      next_report_ = wait_limits().warn.load(std::memory_order_relaxed);
      return;
    }
    const std::uint64_t waited = now - begin_;
    if (what_ != Of::kFlight && waited >= next_post_) {
      next_post_ = waited + kPostEvery;
      post_status(begin_, about.text(waited));
    }
    const std::uint64_t timeout = wait_limits().timeout.load(std::memory_order_relaxed);
    if (what_ == Of::kWait && timeout != 0 && waited >= timeout) {
      timed_out_ = true;  // the autopsy shows what this process waited for, and clears it
      post_status(begin_, about.text(waited));
      throw TimeoutError(about.text(waited));
    }
    if (next_report_ != 0 && waited >= next_report_) {
      next_report_ *= 2;
      if (about.reports()) print_report(about.text(waited));
    }
  }

 private:
  static constexpr std::uint64_t kEvery = 5'000'000;
  static constexpr std::uint64_t kFirstPost = 100'000'000, kPostEvery = 500'000'000;

  const Of what_;
  std::uint64_t begin_ = 0, next_look_ = 0, next_report_ = 0, next_post_ = kFirstPost;
  bool timed_out_ = false;
};

// "12.5 s"
std::string seconds_text(std::uint64_t nanoseconds);

}  // namespace gradred
