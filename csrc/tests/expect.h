// How a test program checks: it goes on after what does not hold, and tells at its end.
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

// What main() returns.
inline int report(const char* program) {
  if (failures == 0) std::printf("%s: all passed\n", program);
  return failures == 0 ? 0 : 1;
}

}  // namespace gradred::testing
