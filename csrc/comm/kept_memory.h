// How much memory communicators keep for later calls: one limit for all of a process, since a
// program may have many that it hardly uses.
#pragma once

#include <atomic>
#include <cstddef>

namespace gradred {

// What one owner keeps. Each says so for itself, one thread at a time.
class KeptMemory {
 public:
  static constexpr std::size_t kMost = std::size_t{256} << 20;  // of all together

  KeptMemory() = default;
  ~KeptMemory() { give_up(); }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // Whether the owner may keep so much in place of what it has kept; if not, it keeps nothing.
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
