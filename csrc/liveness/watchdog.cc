#include "liveness/watchdog.h"

#include <cstdio>
#include <string>

namespace gradred {

WaitLimits& wait_limits() {
  static WaitLimits limits;
  return limits;
}

std::string seconds_text(std::uint64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", 1e-9 * static_cast<double>(nanoseconds));
  return text;
}

}  // namespace gradred
