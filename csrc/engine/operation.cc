#include "engine/operation.h"

#include <utility>

namespace gradred {

Progress Operation::advance(Caller caller) noexcept {
  constexpr Progress kEnded{Progress::State::kEnded, {}};
  if (ended()) return kEnded;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (private_) {
    // No other thread knows the operation.
  } else if (caller == Caller::kPatient) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return {Progress::State::kTaken, {}};
  }
  if (ended()) return kEnded;
  caller_ = caller;
  const Progress before = stopped_;
  stopped_ = {Progress::State::kPolls, {}};
  if (wait_clock_) wait_clock_->step_begins();
  try {
    if (!step()) {
      note_stop(before);
      return stopped_;
    }
    end(nullptr);
  } catch (...) {
    withdraw();
    end(std::current_exception());
  }
  return kEnded;
}

void Operation::note_stop(const Progress& before) {
  const bool same = stopped_.state == before.state && stopped_.what == before.what &&
                    stopped_.awaited.word == before.awaited.word &&
                    stopped_.awaited.target == before.awaited.target;
  if (!same) stops_.store(stops() + 1, std::memory_order_relaxed);
  if (!wait_clock_) return;
  const bool awaits = stopped_.state == Progress::State::kAwaits;
  wait_clock_->step_ends(awaits ? WaitCause::kPeers : stopped_.what, same);
}

void Operation::abandon(std::exception_ptr reason) noexcept {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!private_) lock.lock();
  if (ended()) return;
  give_up(reason);
  end(std::move(reason));
}

void Operation::end(std::exception_ptr failure) noexcept {
  failure_ = std::move(failure);
  on_end(failure_ == nullptr);
  ended_.store(true, std::memory_order_release);
  post_callbacks();
}

// Called by the thread that has ended the operation, and by those that find its end. After any of
// these calls all callbacks are posted.
void Operation::post_callbacks() noexcept {
  if (private_) return;
  const std::lock_guard lock(callbacks_mutex_);
  if (!callbacks_.empty()) done_callbacks().post(this, std::exchange(callbacks_, {}));
}

void Operation::when_ended(DoneCallback callback) {
  {
    const std::lock_guard lock(callbacks_mutex_);  // post_callbacks() takes it after the end
    if (!ended()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void Operation::rethrow() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace gradred
