#include "engine/operation.h"

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
}

void Operation::rethrow() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace gradred
