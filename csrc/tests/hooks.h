// Hooks for tests of waits, and the error that a use ends with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "calls/call.h"
#include "node_ranks.h"

namespace gradred::testing {

// Fails a test that waits for too long.
class Patience final : public WaitHook {
 public:
  void waiting() override { expect(now_ns() < end_ns_, "it has waited for too long"); }
  void long_work() override {}

 private:
  std::uint64_t end_ns_ = now_ns() + 50'000'000'000;
};

struct Interrupted {};
class Interrupts final : public WaitHook {
 public:
  void waiting() override { throw Interrupted(); }
  void long_work() override {}
};

// The text of the error; without one the test fails.
template <class Expected>
std::string error_of(const std::function<void()>& use) {
  try {
    use();
  } catch (const Expected& error) {
    return error.what();
  }
  throw Failed("no error");
}

}  // namespace gradred::testing
