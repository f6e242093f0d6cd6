// Checks of a test program. It continues after a failed check, and reports all failures at its end.
#pragma once

#include <cstdio>
#include <string>

namespace gradred::testing {

inline int failures = 0;

inline void expect(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

// Returns the exit status for main().
inline int report(const char* program) {
  if (failures == 0) std::printf("%s: all passed\n", program);
  return failures == 0 ? 0 : 1;
}

}  // namespace gradred::testing
