// The bounds of tests on real time, in one place: a test of what happens measures no machine.
#pragma once

#include <cstdlib>
#include <string_view>

namespace gradred::testing {

// Whether something took no longer than is promised: on a busy machine it may take much longer,
// unless TESTS_STRICT_TIMES=1 says that this one does nothing else.
inline bool in_time(double seconds, double promised) {
  const char* const strict = std::getenv("TESTS_STRICT_TIMES");
  const bool is_strict = strict != nullptr && std::string_view(strict) == "1";
  return seconds < promised + (is_strict ? 0.0 : 30.0);
}

}  // namespace gradred::testing
