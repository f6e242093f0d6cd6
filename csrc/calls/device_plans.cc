#include "calls/device_plans.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace gradred {
namespace {

std::string length_text(std::size_t bytes) {
  return bytes >> 20 > 0 ? std::to_string(bytes >> 20) + " MiB"
                         : std::to_string(bytes >> 10) + " KiB";
}

std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "not possible";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g us", 1e6 * seconds);
  return text.data();
}

}  // namespace

void DevicePlans::settle(std::vector<Candidate> candidates, std::vector<Size> sizes) {
  candidates_ = std::move(candidates);
  sizes_ = std::move(sizes);
}

std::size_t DevicePlans::best(const Size& size) const {
  return static_cast<std::size_t>(std::ranges::min_element(size.seconds) - size.seconds.begin());
}

const char* DevicePlans::plan_for(std::size_t bytes) const {
  if (!measured()) return "";
  const auto distance = [bytes](const Size& size) {
    return std::abs(std::log(static_cast<double>(std::max<std::size_t>(bytes, 1))) -
                    std::log(static_cast<double>(size.bytes)));
  };
  return candidates_[best(*std::ranges::min_element(sizes_, {}, distance))].plan.c_str();
}

std::vector<std::string> DevicePlans::texts() const {
  std::vector<std::string> found;
  for (const Size& size : sizes_) {
    std::string& text = found.emplace_back(length_text(size.bytes) + ": ");
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      text += (i > 0 ? ", " : "") + candidates_[i].label + " " + time_text(size.seconds[i]);
    }
  }
  return found;
}

}  // namespace gradred
