// Ranks of this host that this process has met in no call (src/gradred/_strangers.py).
#pragma once

#include <cstdint>

namespace gradred {

// With the GIL. What is not found stays unknown. The first looks once, the second for two seconds.
void meet_strangers() noexcept;
void await_strangers() noexcept;

// Of one wait: looks for them once that has lasted long, and then more and more seldom.
class Search {
 public:
  void look() noexcept;  // with the GIL

 private:
  std::uint64_t begin_ns_ = 0, after_ns_ = 1'000'000'000;
};

}  // namespace gradred
