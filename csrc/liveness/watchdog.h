// Watches long waits: publishes and reports them, looks for missing ranks, and throws when the time
// limit is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/errors.h"
#include "base/tell_once.h"
#include "liveness/local_peer_search.h"
#include "liveness/status_page.h"

namespace gradred {

// Limits in nanoseconds; 0: never.
struct WaitLimits {
  std::atomic<std::uint64_t> warn{60'000'000'000};
  std::atomic<std::uint64_t> timeout{0};
};
WaitLimits& wait_limits();

std::string seconds_text(std::uint64_t nanoseconds);  // "12.5 s"

// Watches one wait. `about` describes it: waiter() names this rank; record() and waits_for() give,
// as numbers and as text, what it waits for and who is missing; reports() says whether this rank
// prints the report, so that there is one report per host.
class Watchdog {
 public:
  enum class Of : std::uint8_t {
    kWait,           // publishes and reports the wait, and throws at the time limit
    kUnlimitedWait,  // the same without a time limit
    kWaitInMpi,      // only reports: the thread waits in a function of the MPI
    kFlight,         // only reports: an operation is in flight, and perhaps no thread waits for it
  };

  explicit Watchdog(Of what = Of::kWait) : what_(what) {}
  ~Watchdog() {
    if (next_post_ > kFirstPost && !timed_out_) clear_wait();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

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
    if (!only_reports() && waited >= next_search_) {
      next_search_ *= 2;
      meet_local_peers();
    }
    if (!only_reports() && waited >= next_post_) {
      next_post_ = waited + kPostEvery;
      post_wait(begin_, about.record(), about.waits_for());
    }
    const std::uint64_t timeout = wait_limits().timeout.load(std::memory_order_relaxed);
    if (what_ == Of::kWait && timeout != 0 && waited >= timeout) {
      timed_out_ = true;  // the hang report shows what this process waited for, and clears it
      post_wait(begin_, about.record(), about.waits_for());
      throw TimeoutError(text(about, waited));
    }
    if (next_report_ != 0 && waited >= next_report_) {
      next_report_ *= 2;
      if (about.reports()) print_report(text(about, waited));
    }
  }

 private:
  static constexpr std::uint64_t kEvery = 5'000'000;
  static constexpr std::uint64_t kFirstPost = 100'000'000, kPostEvery = 500'000'000;

  bool only_reports() const { return what_ == Of::kWaitInMpi || what_ == Of::kFlight; }
  template <class About>
  std::string text(const About& about, std::uint64_t waited) const {
    const bool flies = what_ == Of::kFlight;
    return about.waiter() + (flies ? " has had an operation in flight for " : " has waited ") +
           seconds_text(waited) + (flies ? ": " : " in ") + about.waits_for();
  }

  const Of what_;
  std::uint64_t begin_ = 0, next_look_ = 0, next_report_ = 0, next_post_ = kFirstPost;
  std::uint64_t next_search_ = 1'000'000'000;
  bool timed_out_ = false;
};

}  // namespace gradred
