// Measured times of calls on arrays in devices' memory, by plan. They are measured once for each
// layout of hosts and devices.
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
    std::vector<double> seconds;  // by plan; infinite: the plan cannot carry out the call
    bool operator==(const Size&) const = default;
  };

  FiguresKey place;
  // The devices of each rank, and what else decides which plans are possible.
  std::string devices;
  std::string day;  // of the measurement, as a date
  std::vector<std::string> plans;
  std::vector<Size> sizes;  // in order, the shortest first
};

std::string to_text(const DeviceFigures& figures);
// Throws UsageError, which describes what is wrong with the text.
DeviceFigures device_figures_from(std::string_view text);

// Reads the figures for the layout, devices and plans of `wanted`. The result has no sizes if there
// is not such a file.
DeviceFigures read_device_figures(const std::string& folder, const DeviceFigures& wanted);
// Like write_figures().
void write_device_figures(const std::string& folder, const DeviceFigures& figures);

}  // namespace gradred
