// The operations of a communicator in the memory of a host, in the order in which they were
// started. The node group carries out one at a time.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

namespace gradred {

class StartedOperation;
class WaitHook;

class NodeQueue {
 public:
  using Lock = std::unique_lock<std::mutex>;

  // Held by a thread that asks the group how far it is, or advances the operation that the group
  // carries out.
  Lock lock() const { return Lock(mutex_); }
  Lock try_lock() const { return Lock(mutex_, std::try_to_lock); }

  bool any() const { return any_.load(std::memory_order_acquire); }
  void add(std::shared_ptr<StartedOperation> operation);
  std::shared_ptr<StartedOperation> first() const;  // nullptr: there is none
  // Blocking: completes all operations in the queue.
  void finish(WaitHook& hook);

  // With the lock held. A removed operation lives on as long as a thread advances it.
  bool is_first(const StartedOperation* operation) const;
  void remove(const StartedOperation* operation) noexcept;

 private:
  mutable std::mutex mutex_;
  std::deque<std::shared_ptr<StartedOperation>> operations_;
  std::atomic<bool> any_{false};
};

}  // namespace gradred
