#include "engine/waiting.h"

#include <time.h>

#include "base/clock.h"
#include "base/core.h"
#include "engine/driving.h"
#include "liveness/watchdog.h"
#include "node/memory/wait.h"

namespace gradred {
namespace {

// Thrown to end the wait for a word that may never be reached: another thread has ended the
// operation, or the time is over.
struct Enough {};

class Wait final : private Poll, private Guard {
 public:
  Wait(Operation& operation, WaitHook& hook, Watchdog::Of what = Watchdog::Of::kWait,
       std::uint64_t deadline_ns = UINT64_MAX)
      : operation_(operation),
        hook_(hook),
        deadline_ns_(deadline_ns),
        waiter_(operation.spins(), *this),
        backoff_(operation.spins()),
        watchdog_(what) {
    waiter_.use(this);
  }

  // Returns whether the operation has ended.
  bool run() {
    const Engine::Waiting waiting(engine());
    if (operation_.bytes() > kLongWorkBytes) {
      hook_.long_work();
      drive_if_due();
    }
    using State = Progress::State;
    Progress last = operation_.advance();
    for (; !last; last = operation_.advance()) {
      if (is_late()) return false;
      if (last.state == State::kAwaits) {
        wait_for(last.awaited);
      } else if (last.state == State::kTaken) {
        hook_.long_work();
        last = operation_.advance(Operation::Caller::kPatient);
        if (last) return true;
        if (last.state == State::kTaken) look_again();  // an operation before it is taken
      } else {
        look_again();
      }
    }
    return true;
  }

 private:
  void wait_for(const Awaited& awaited) {
    advanced_ns_ = now_ns();
    const bool sleepers_are_usual = awaited.expected == nullptr;
    // A rank with a core of its own spins first: where other programs run, each yield may take
    // milliseconds.
    if (sleepers_are_usual && !waiter_.spins() && cores_are_shared()) waiter_.yield_at_once();
    try {
      waiter_.wait(awaited);
    } catch (const Enough&) {
    }
  }
  void look_again() {
    backoff_.wait([this] { look_around(); });
  }
  void look_around() {
    hook_.waiting();
    drive();
    watchdog_.check(AboutOperation{operation_});
  }
  void poll() override {
    look_around();
    if (is_late() || now_ns() - advanced_ns_ >= kAdvanceEveryNs) throw Enough();
  }
  void glance() override {
    if (operation_.ended()) throw Enough();
  }
  bool is_late() const { return deadline_ns_ != UINT64_MAX && now_ns() >= deadline_ns_; }
  void check_awaited() override {}  // advance() checks it

  // An operation may have to look for its peers by messages, too.
  static constexpr std::uint64_t kAdvanceEveryNs = 20'000'000;

  Operation& operation_;
  WaitHook& hook_;
  const std::uint64_t deadline_ns_;
  Waiter waiter_;
  Backoff backoff_;
  Watchdog watchdog_;
  std::uint64_t advanced_ns_ = 0;
};

}  // namespace

bool see_through(Operation& operation, WaitHook& hook, std::uint64_t deadline_ns) {
  return Wait(operation, hook, Watchdog::Of::kWait, deadline_ns).run();
}

void see_through_in_mpi(Operation& operation, WaitHook& hook) {
  Wait(operation, hook, Watchdog::Of::kWaitInMpi).run();
}

void wait_for(Operation& operation, WaitHook& hook) {
  wait_until(operation, hook, UINT64_MAX);
  operation.rethrow();
}

bool wait_until(Operation& operation, WaitHook& hook, std::uint64_t deadline_ns) {
  try {
    return see_through(operation, hook, deadline_ns);
  } catch (...) {  // the hook has thrown to leave the wait
    operation.abandon(std::current_exception());
    throw;
  }
}

void Backoff::pause(std::uint64_t now) {
  constexpr std::uint64_t kMillisecond = 1'000'000;
  if (begin_ns_ == 0) begin_ns_ = now;
  const std::uint64_t waited = now - begin_ns_;
  if (spins_ || waited < kMillisecond) {
    yield_core();
  } else if (looks_ % 8 == 0) {  // more ranks than cores, perhaps: sched_yield() may do nothing
    const timespec nap{0, waited < 100 * kMillisecond ? 20'000 : 100'000};
    nanosleep(&nap, nullptr);
  }
}

}  // namespace gradred
