// How much memory communicators keep cached for later calls. There is one limit for the process,
// because a program may have many communicators that it hardly uses.
#pragma once

#include <atomic>
#include <cstddef>

namespace gradred {

// The memory that one owner keeps cached. Each owner reports its own, from one thread at a time.
class KeptMemory {
 public:
  static constexpr std::size_t kMost = std::size_t{256} << 20;  // of all owners together

  KeptMemory() = default;
  ~KeptMemory() { give_up(); }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // Whether the owner may keep this much instead of what it has kept so far. If not, it keeps
  // nothing.
  bool keep(std::size_t bytes) noexcept {
    if (bytes == bytes_) return true;
    give_up();
    if (all.fetch_add(bytes, std::memory_order_relaxed) + bytes > kMost) {
      all.fetch_sub(bytes, std::memory_order_relaxed);
      return false;
    }
    bytes_ = bytes;
    return true;
  }
  void give_up() noexcept {
    if (bytes_ > 0) all.fetch_sub(bytes_, std::memory_order_relaxed);
    bytes_ = 0;
  }

 private:
  static inline std::atomic<std::size_t> all{0};

  std::size_t bytes_ = 0;
};

}  // namespace gradred
