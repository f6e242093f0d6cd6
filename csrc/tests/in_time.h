// Limits for tests that depend on real time. Other tests must not depend on the speed of a machine.
#pragma once

#include <cstdlib>
#include <string_view>

namespace gradred::testing {

// Whether TESTS_STRICT_TIMES=1 declares that the machine does nothing else.
inline bool times_are_strict() {
  const char* const strict = std::getenv("TESTS_STRICT_TIMES");
  return strict != nullptr && std::string_view(strict) == "1";
}

// Whether something took no longer than promised. On a busy machine it may take 30 s longer.
inline bool in_time(double seconds, double promised) {
  return seconds < promised + (times_are_strict() ? 0.0 : 30.0);
}

}  // namespace gradred::testing
