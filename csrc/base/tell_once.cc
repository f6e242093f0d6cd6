#include "base/tell_once.h"

#include <unistd.h>

#include <exception>
#include <mutex>
#include <set>

namespace gradred {

void print_report(const std::string& text) {
  const std::string line = "gradred: " + text + "\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

void tell_once(const std::string& text) noexcept try {
  constexpr std::size_t kMost = 20;
  static std::mutex mutex;
  static auto& printed =
      *new std::set<std::string>;  // never freed: threads may outlive static objects
  {
    const std::lock_guard lock(mutex);
    if (printed.size() >= kMost || !printed.insert(text).second) return;
  }
  print_report(text);
} catch (const std::exception&) {  // there is no memory for the text
}

}  // namespace gradred
