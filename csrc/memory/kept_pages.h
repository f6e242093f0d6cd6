// Memory of long results that calls make: pages that a program has let go serve the next result.
// A page that comes from the kernel is cleared and mapped first, which takes longer than a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gradred {

class KeptPages {
 public:
  static constexpr std::size_t kLeast = std::size_t{256} << 10;  // bytes; shorter: the C library's
  static constexpr std::size_t kMost = std::size_t{128} << 20;   // bytes kept for later results
  static constexpr std::uint64_t kForgotten = 64;  // results since a block was used: it goes

  static KeptPages& of_process();

  // Returns nullptr if there is no memory. The contents are undefined.
  void* take(std::size_t bytes);
  // Requires memory of take(). Keeps it for the next result, or gives it back to the system.
  void give(void* data);
  // The bytes that memory of take() has, which are no fewer than were asked for.
  std::size_t room(void* data);
  std::size_t kept_bytes();

 private:
  struct Block {
    void* data;
    std::size_t bytes;
    std::uint64_t given;  // number of results before it was let go
  };

  void* kept(std::size_t bytes);
  void drop_forgotten();
  void drop_all();

  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> used_;
  std::vector<Block> kept_;  // the oldest first
  std::size_t kept_bytes_ = 0;
  std::uint64_t results_ = 0;
};

}  // namespace gradred
