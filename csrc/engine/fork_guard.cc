#include "engine/fork_guard.h"

#include <pthread.h>

#include <atomic>

#include "base/errors.h"

namespace gradred {
namespace {

std::atomic<bool> is_fork{false};  // this process is a child that a rank has forked

}  // namespace

// The handler runs in every forked child. A child that only runs another program is not affected.
void guard_forks() {
  pthread_atfork(nullptr, nullptr, [] { is_fork.store(true, std::memory_order_relaxed); });
}

bool is_fork_of_rank() { return is_fork.load(std::memory_order_relaxed); }

void require_rank() {
  if (is_fork_of_rank()) [[unlikely]] {
    throw UsageError(
        "this process is a child that a rank has forked: only ranks communicate. Do it in the "
        "rank, "
        "or start ranks of their own with gradred.run");
  }
}

}  // namespace gradred
