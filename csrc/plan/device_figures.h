// What calls on arrays in devices' memory take by each plan, as ranks of one layout of hosts and
// devices have measured it once.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "plan/figures.h"

namespace gradred {

struct DeviceFigures {
  struct Size {
    std::size_t bytes;
    std::vector<double> seconds;  // by plan; infinite: it cannot
    bool operator==(const Size&) const = default;
  };

  FiguresKey place;
  std::string devices;  // of each rank, and what else decides what is possible
  std::string day;      // of the measurement
  std::vector<std::string> plans;
  std::vector<Size> sizes;  // the shortest first
};

std::string to_text(const DeviceFigures& figures);
// UsageError tells what is wrong with the text.
DeviceFigures device_figures_from(std::string_view text);

// For figures of this place, these devices and plans. Without sizes: there is no such file.
DeviceFigures read_device_figures(const std::string& folder, const DeviceFigures& wanted);
// As write_figures().
void write_device_figures(const std::string& folder, const DeviceFigures& figures);

}  // namespace gradred
