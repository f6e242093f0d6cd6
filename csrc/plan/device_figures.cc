#include "plan/device_figures.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>

#include "base/errors.h"
#include "base/signature.h"

namespace gradred {
namespace {

constexpr std::string_view kDeviceFormat = "gradred-device-figures 1";
constexpr std::string_view kImpossible = "never";
constexpr double kLongestCall = 1e4;  // seconds

// Returns the rest of the next line, which must begin with `name`.
std::string rest(std::istringstream& lines, const std::string& name) {
  std::string line;
  std::getline(lines, line);
  if (line.starts_with(name + " ")) return line.substr(name.size() + 1);
  throw UsageError("where '" + name + "' should stand there is '" + line.substr(0, 60) + "'");
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> found;
  for (std::string word; in >> word;) found.push_back(word);
  return found;
}

double number(const std::string& word) {
  if (word == kImpossible) return std::numeric_limits<double>::infinity();
  std::istringstream in(word);
  double value = 0;
  if (in >> value && in.eof() && std::isfinite(value) && value > 0) return value;
  throw UsageError("'" + word.substr(0, 60) + "' is not a number above zero");
}

std::string text_of(double seconds) {
  if (!std::isfinite(seconds)) return std::string(kImpossible);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", seconds);
  return text.data();
}

DeviceFigures::Size size_from(const std::string& text, std::size_t plans) {
  const std::vector<std::string> all = words(text);
  if (all.size() != plans + 1) throw UsageError("a size that has not a time for each plan");
  DeviceFigures::Size size{static_cast<std::size_t>(number(all[0])), {}};
  for (std::size_t i = 1; i < all.size(); ++i) {
    size.seconds.push_back(number(all[i]));
    if (std::isfinite(size.seconds.back()) && size.seconds.back() > kLongestCall) {
      throw UsageError("'" + all[i] + "' is not a time of a call");
    }
  }
  return size;
}

std::string file_for(const std::string& folder, const DeviceFigures& figures) {
  FiguresKey key = figures.place;
  key.layout += " " + figures.devices;
  for (const std::string& plan : figures.plans) key.layout += " " + plan;
  return figures_file(folder, key) + "-of-devices";
}

}  // namespace

std::string to_text(const DeviceFigures& figures) {
  std::string text = std::string(kDeviceFormat) + "\n";
  const auto add = [&](std::string_view name, const std::string& value) {
    text += std::string(name) + " " + value + "\n";
  };
  add("mpi", figures.place.mpi);
  add("hosts", figures.place.hosts);
  add("layout", figures.place.layout);
  add("devices", figures.devices);
  add("measured", figures.day);
  std::string plans;
  for (const std::string& plan : figures.plans) plans += (plans.empty() ? "" : " ") + plan;
  add("plans", plans);
  for (const DeviceFigures::Size& size : figures.sizes) {
    std::string line = std::to_string(size.bytes);
    for (const double seconds : size.seconds) line += " " + text_of(seconds);
    add("size", line);
  }
  return text + "end\n";
}

DeviceFigures device_figures_from(std::string_view text) {
  std::istringstream lines{std::string(text)};
  std::string line;
  std::getline(lines, line);
  if (line != kDeviceFormat)
    throw UsageError("it does not begin with '" + std::string(kDeviceFormat) + "'");
  DeviceFigures found;
  found.place.mpi = rest(lines, "mpi");
  found.place.hosts = rest(lines, "hosts");
  found.place.layout = rest(lines, "layout");
  found.devices = rest(lines, "devices");
  found.day = rest(lines, "measured");
  found.plans = words(rest(lines, "plans"));
  while (true) {
    const auto here = lines.tellg();
    if (std::getline(lines, line) && line == "end") break;
    lines.clear();
    lines.seekg(here);
    found.sizes.push_back(size_from(rest(lines, "size"), found.plans.size()));
  }
  if (found.sizes.empty()) throw UsageError("it has no sizes");
  return found;
}

DeviceFigures read_device_figures(const std::string& folder, const DeviceFigures& wanted) {
  try {
    DeviceFigures found = device_figures_from(read_kept_file(file_for(folder, wanted)));
    if (found.place == wanted.place && found.devices == wanted.devices &&
        found.plans == wanted.plans) {
      return found;
    }
  } catch (const UsageError&) {  // the file will be written again
  }
  return wanted;
}

void write_device_figures(const std::string& folder, const DeviceFigures& figures) {
  write_kept_file(folder, file_for(folder, figures), to_text(figures));
}

}  // namespace gradred
