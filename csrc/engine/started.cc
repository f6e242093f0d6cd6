#include "engine/started.h"

#include <new>

#include "base/clock.h"
#include "engine/waiting.h"

namespace gradred {

void StartedOperation::on_end(bool well) noexcept {
  if (observation_ != nullptr) {
    const WaitTimes wait_times = wait_clock() != nullptr ? wait_clock()->ends() : WaitTimes{};
    observation_->end(well, wait_times, used_transport(), is_copied_to_host());
  }
  if (!generalized_request_.end()) return;
  if (thread_may_drive() || !Engine::in_its_thread()) return generalized_request_.complete();
  complete_later({generalized_request_.operation(), &generalized_request_});
}

void StartedOperation::look_after() noexcept {
  constexpr std::uint64_t kRecentlyNs = 1'000'000'000;
  const std::uint64_t tested_ns = tested_ns_.load(std::memory_order_relaxed);
  if (tested_ns != 0 && now_ns() - tested_ns < kRecentlyNs) return;
  try {
    flight_.check(AboutOperation{*this});
  } catch (const std::bad_alloc&) {
    // The operation goes on; only the report lacks memory.
  }
}

}  // namespace gradred
