#include "engine/notices/numbers.h"

#include <memory>

namespace gradred {

void OperationNumbers::end(std::uint64_t number) {
  if (number - oldest_.load() < kMost) {
    ring()[number % kMost].store(number + 1);
  } else {
    const std::lock_guard lock(mutex_);
    far_.insert(number);
    any_far_.store(true);
  }
  pass_ended();  // called after the store: the last thread to look sees it
}

OperationNumbers::Ring& OperationNumbers::ring() {
  Ring* found = ended_.load();
  if (found != nullptr) [[likely]] {
    return *found;
  }
  auto made = std::make_unique<Ring>();
  if (ended_.compare_exchange_strong(found, made.get())) return *made.release();
  return *found;  // another thread has just made it
}

bool OperationNumbers::has_ended(std::uint64_t number) const {
  if (number < oldest_.load()) return true;
  if (ended_in_ring(number)) return true;
  if (!any_far_.load()) return false;
  const std::lock_guard lock(mutex_);
  return far_.contains(number);
}

void OperationNumbers::pass_ended() {
  std::uint64_t oldest = oldest_.load();
  while (ended_in_ring(oldest) || take_far(oldest)) {
    if (oldest_.compare_exchange_strong(oldest, oldest + 1)) ++oldest;
  }
}

bool OperationNumbers::take_far(std::uint64_t number) {
  if (!any_far_.load()) return false;
  const std::lock_guard lock(mutex_);
  const bool found = far_.erase(number) != 0;
  any_far_.store(!far_.empty());
  return found;
}

}  // namespace gradred
