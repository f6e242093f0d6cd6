#include "families/memory/node_queue.h"

#include <utility>

#include "engine/started.h"
#include "engine/waiting.h"

namespace gradred {

void NodeQueue::add(std::shared_ptr<StartedOperation> operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
  any_ = true;
}

std::shared_ptr<StartedOperation> NodeQueue::first() const {
  const std::lock_guard lock(mutex_);
  return operations_.empty() ? nullptr : operations_.front();
}

bool NodeQueue::is_first(const StartedOperation* operation) const {
  return !operations_.empty() && operations_.front().get() == operation;
}

void NodeQueue::remove(const StartedOperation* operation) noexcept {
  std::erase_if(operations_, [&](const auto& other) { return other.get() == operation; });
  any_ = !operations_.empty();
}

void NodeQueue::finish(WaitHook& hook) {
  while (any()) {
    std::shared_ptr<StartedOperation> last;
    {
      const std::lock_guard lock(mutex_);
      if (operations_.empty()) return;
      last = operations_.back();
    }
    see_through(*last, hook);
  }
}

}  // namespace gradred
