// What a communicator has on its way in messages. Long calls that are under way side by side take
// longer than one after the other: they share the wire, and each is in the other's way. Many short
// ones cost a look at each, again and again.
#pragma once

#include <atomic>
#include <cstdint>

namespace gradred {

class Wire {
 public:
  // Whether one more call may begin. The oldest of those that have not ended always may: of all
  // ranks' calls the oldest one may on each of them, so none waits in a circle.
  bool admits(bool is_oldest) const {
    return is_oldest || (bytes_.load(std::memory_order_relaxed) <= kMostBytes &&
                         calls_.load(std::memory_order_relaxed) < kMostCalls);
  }
  void enter(std::uint64_t bytes) {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    calls_.fetch_add(1, std::memory_order_relaxed);
  }
  void leave(std::uint64_t bytes) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    calls_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 10;
  static constexpr std::uint32_t kMostCalls = 16;
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint32_t> calls_{0};
};

}  // namespace gradred
