#include "engine/operation.h"

#include <utility>

namespace gradred {

Progress Operation::advance(Caller caller) noexcept {
  constexpr Progress kEnded{Progress::State::kEnded, {}};
  if (ended()) return kEnded;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (private_) {
    // There is nobody to wait for.
  } else if (caller == Caller::kPatient) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return {Progress::State::kTaken, {}};
  }
  if (ended()) return kEnded;
  caller_ = caller;
  stopped_ = {Progress::State::kPolls, {}};
  try {
    if (!step()) return stopped_;
    end(nullptr);
  } catch (...) {
    withdraw();
    end(std::current_exception());
  }
  return kEnded;
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

void Operation::post_callbacks() noexcept {
  if (private_) return;
  std::vector<DoneCallback> callbacks;
  {
    const std::lock_guard lock(callbacks_mutex_);
    callbacks.swap(callbacks_);
  }
  if (!callbacks.empty()) done_callbacks().post(this, std::move(callbacks));
}

void Operation::when_ended(DoneCallback callback) {
  {
    const std::lock_guard lock(callbacks_mutex_);  // taken once more after the end is visible
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
