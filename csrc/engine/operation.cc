#include "engine/operation.h"

#include <utility>

namespace gradred {

bool Operation::advance() noexcept {
  if (ended()) return true;
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  if (ended()) return true;
  try {
    if (!step()) return false;
    end(nullptr);
  } catch (...) {
    withdraw();
    end(std::current_exception());
  }
  return true;
}

void Operation::abandon(std::exception_ptr reason) noexcept {
  const std::lock_guard lock(mutex_);
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
