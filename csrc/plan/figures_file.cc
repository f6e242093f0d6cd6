// Figures as text: one line for each value, and `end` as the last line.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/errors.h"
#include "base/random.h"
#include "base/signature.h"
#include "plan/figures.h"

namespace gradred {
namespace {

constexpr std::string_view kFormat = "gradred-figures 4";
constexpr double kLongest = 1e4;  // seconds; a larger value is not a time of a link
constexpr std::size_t kMostBytes = std::size_t{1} << 20;  // of a file, at most

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

class Lines {
 public:
  explicit Lines(std::string_view text) : in_(std::string(text)) {}

  // Returns the rest of the next line, which must begin with `name`.
  std::string rest(std::string_view name) {
    std::string line;
    std::getline(in_, line);
    const std::string begin = std::string(name) + " ";
    if (!line.starts_with(begin)) fail("'" + std::string(name) + "'", line);
    return line.substr(begin.size());
  }
  template <std::size_t n>
  std::array<double, n> numbers(std::string_view name, std::string_view text) {
    std::istringstream in{std::string(text)};
    std::array<double, n> found{};
    for (double& value : found) {
      if (!(in >> value) || !std::isfinite(value) || value < 0) fail_numbers(name, text);
    }
    if (std::string more; in >> more) fail_numbers(name, text);
    return found;
  }
  // Reads times in seconds. A time of zero is accepted.
  template <std::size_t n>
  std::array<double, n> seconds(std::string_view name) {
    const std::string text = rest(name);
    const auto found = numbers<n>(name, text);
    for (const double value : found) {
      if (value > kLongest) fail_numbers(name, text);
    }
    return found;
  }
  bool next_is(std::string_view line) {
    const auto here = in_.tellg();
    if (next() == line) return true;
    in_.seekg(here);
    return false;
  }
  bool next_begins(std::string_view begin) {
    const auto here = in_.tellg();
    const bool does = next().starts_with(begin);
    in_.seekg(here);
    return does;
  }

 private:
  std::string next() {
    std::string line;
    std::getline(in_, line);
    return line;
  }
  [[noreturn]] static void fail(const std::string& expected, const std::string& found) {
    throw UsageError("where " + expected + " should stand there is '" + found.substr(0, 60) + "'");
  }
  [[noreturn]] static void fail_numbers(std::string_view name, std::string_view text) {
    fail("the value of '" + std::string(name) + "'", std::string(text));
  }

  std::istringstream in_;
};

TriedPlan tried_plan(Lines& lines) {
  const std::string text = lines.rest("plan");
  const std::size_t second = text.find(' ');
  const std::size_t label = second == std::string::npos ? second : text.find(' ', second + 1);
  const auto [seconds, predicted] = lines.numbers<2>("plan", text.substr(0, label));
  if (label == std::string::npos || label + 1 == text.size() || seconds <= 0 || predicted <= 0) {
    throw UsageError("the plan '" + text.substr(0, 60) + "' has no times or no name");
  }
  return {text.substr(label + 1), seconds, predicted};
}

}  // namespace

std::string to_text(const KeptFigures& kept) {
  const Figures& figures = kept.figures;
  const CostModel& model = figures.model;
  std::string text = std::string(kFormat) + "\n";
  const auto add = [&](std::string_view name, const std::string& value) {
    text += std::string(name) + " " + value + "\n";
  };
  add("mpi", kept.key.mpi);
  add("hosts", kept.key.hosts);
  add("layout", kept.key.layout);
  add("measured", figures.day);
  add("inside", number(model.inside.alpha) + " " + number(model.inside.beta));
  add("across", number(model.across.alpha) + " " + number(model.across.beta));
  add("gap", number(model.gap));
  add("pieces", std::to_string(figures.piece_bytes));
  add("local", number(model.gamma) + " " + number(model.delta));
  add("on-host", number(model.on_host));
  add("far", number(model.far));
  add("announcement", number(figures.announcement));
  for (const MeasuredSize& one : figures.sizes) {
    add("size", std::to_string(one.bytes) + " " + number(one.mpi));
    for (const TriedPlan& plan : one.tried) {
      add("plan", number(plan.seconds) + " " + number(plan.predicted) + " " + plan.label);
    }
  }
  return text + "end\n";
}

KeptFigures figures_from(std::string_view text) {
  Lines lines(text);
  if (!lines.next_is(kFormat)) {
    throw UsageError("it does not begin with '" + std::string(kFormat) + "'");
  }
  KeptFigures kept;
  kept.key.mpi = lines.rest("mpi");
  kept.key.hosts = lines.rest("hosts");
  kept.key.layout = lines.rest("layout");
  Figures& figures = kept.figures;
  CostModel& model = figures.model;
  figures.day = lines.rest("measured");
  const auto inside = lines.seconds<2>("inside"), across = lines.seconds<2>("across");
  model.inside = {inside[0], inside[1]};
  model.across = {across[0], across[1]};
  model.gap = lines.seconds<1>("gap")[0];
  const auto pieces = lines.numbers<1>("pieces", lines.rest("pieces"))[0];
  if (pieces != 0 && pieces != kPieceBytes) {
    throw UsageError("pieces of " + number(pieces) + " bytes: there are none but 0 and " +
                     std::to_string(kPieceBytes));
  }
  figures.piece_bytes = static_cast<std::size_t>(pieces);
  const auto local = lines.seconds<2>("local");
  model.gamma = local[0];
  model.delta = local[1];
  model.on_host = lines.seconds<1>("on-host")[0];
  model.far = lines.seconds<1>("far")[0];
  figures.announcement = lines.seconds<1>("announcement")[0];
  while (!lines.next_is("end")) {
    const auto [bytes, mpi] = lines.numbers<2>("size", lines.rest("size"));
    const auto length = static_cast<std::size_t>(bytes);
    const bool longer = figures.sizes.empty() || length > figures.sizes.back().bytes;
    std::vector<TriedPlan> tried;
    while (lines.next_begins("plan ")) tried.push_back(tried_plan(lines));
    if (!longer || bytes < 1 || bytes > 1e15 || mpi <= 0 || tried.empty()) {
      throw UsageError("the size " + number(bytes) + " has no times, or its place is another one");
    }
    figures.sizes.push_back({length, mpi, std::move(tried)});
  }
  if (figures.sizes.empty()) throw UsageError("it has no sizes");
  return kept;
}

std::string figures_file(const std::string& folder, const FiguresKey& key) {
  std::uint64_t hash = 1;
  for (const std::string& part : {key.mpi, key.hosts, key.layout}) {
    hash = mix(mix(hash, part.size()), std::string_view(part));
  }
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
  return folder + "/" + text.data() + ".figures";
}

std::string read_figures(const std::string& folder, const FiguresKey& key) {
  const std::string path = figures_file(folder, key);
  std::error_code error;
  // A pipe would block until somebody writes to it.
  if (!std::filesystem::is_regular_file(path, error)) return {};
  if (std::filesystem::file_size(path, error) > kMostBytes || error) return {};
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  try {
    if (figures_from(text).key == key) return text;
  } catch (const UsageError&) {  // `gradred info` reports it
  }
  return {};
}

void write_figures(const std::string& folder, const FiguresKey& key, const std::string& text) {
  const std::string path = figures_file(folder, key);
  const std::string own = path + "." + std::to_string(random_number());
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  {
    std::ofstream out(own, std::ios::binary | std::ios::trunc);
    out << text;
    out.close();
    if (!out) {
      std::filesystem::remove(own, error);
      return;
    }
  }
  std::filesystem::rename(own, path, error);
  if (error) std::filesystem::remove(own, error);
}

}  // namespace gradred
