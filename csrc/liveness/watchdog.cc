#include "liveness/watchdog.h"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace gradred {

WaitLimits& wait_limits() {
  static WaitLimits limits;
  return limits;
}

void print_report(const std::string& text) {
  const std::string line = "gradred: " + text + "\n";
  // Avoids stdio, so that the lines of several ranks stay whole.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

std::string seconds_text(std::uint64_t nanoseconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", 1e-9 * static_cast<double>(nanoseconds));
  return text;
}

}  // namespace gradred
