#include "plan/figures.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>

namespace gradred {
namespace {

// Until a rank sees the flag of another one, and a byte that it reads from the other's memory.
constexpr Link kMemory = {0.25e-6, 0.1e-9};

// A figure for each length, interpolated linearly over the logarithm of the length.
template <class Number>
double between(const std::vector<MeasuredSize>& sizes, std::size_t bytes, Number number) {
  const auto upper = std::ranges::lower_bound(sizes, bytes, {}, &MeasuredSize::bytes);
  if (upper == sizes.begin()) return number(sizes.front());
  if (upper == sizes.end()) return number(sizes.back());
  const auto log = [](std::size_t n) { return std::log(static_cast<double>(n)); };
  const MeasuredSize &a = *std::prev(upper), &b = *upper;
  const double part = (log(bytes) - log(a.bytes)) / (log(b.bytes) - log(a.bytes));
  return number(a) + part * (number(b) - number(a));
}

}  // namespace

double Figures::correction(std::size_t bytes, std::string_view label) const {
  if (!measured()) return 1;
  if (bytes > sizes.back().bytes) return sizes.back().tried.front().correction();
  return between(sizes, bytes, [&](const MeasuredSize& one) {
    const auto tried = std::ranges::find(one.tried, label, &TriedPlan::label);
    return (tried == one.tried.end() ? one.tried.front() : *tried).correction();
  });
}

// Beyond the longest length the time is proportional to the length. Between two lengths it is
// interpolated linearly, since the time on a link is linear, too.
double Figures::seconds_on_mpi(std::size_t bytes) const {
  const auto n = static_cast<double>(bytes);
  const auto upper = std::ranges::lower_bound(sizes, bytes, {}, &MeasuredSize::bytes);
  double seconds = sizes.front().mpi;
  if (upper == sizes.end()) {
    seconds = sizes.back().mpi * n / static_cast<double>(sizes.back().bytes);
  } else if (upper != sizes.begin()) {
    const MeasuredSize &a = *std::prev(upper), &b = *upper;
    const auto from = static_cast<double>(a.bytes), to = static_cast<double>(b.bytes);
    seconds = a.mpi + (n - from) / (to - from) * (b.mpi - a.mpi);
  }
  return announcement + seconds;
}

// Nothing is posted there, and no routes cross.
CostModel Figures::in_memory() const {
  CostModel found = model;
  found.inside = found.across = kMemory;
  found.gap = found.far = 0;
  return found;
}

std::string Figures::source() const { return measured() ? "measured on " + day : "built in"; }

Figures assumed_figures() {
  Figures figures;
  figures.model = {.inside = {1e-6, 0.1e-9},
                   .across = {2e-6, 0.1e-9},
                   .gap = 0.5e-6,
                   .gamma = 0.05e-9,
                   .delta = 0.05e-9,
                   .on_host = 0.5e-6,
                   .far = 0.05};
  return figures;
}

std::string layout_text(const Topology& topology) {
  if (topology.local > 0) {
    return std::to_string(topology.local) + " on each of " + std::to_string(topology.hosts);
  }
  std::string text;
  for (std::size_t rank = 0; rank < topology.host_of.size();) {
    std::size_t end = rank;
    while (end < topology.host_of.size() && topology.host_of[end] == topology.host_of[rank]) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(end - rank) + " on " +
            std::to_string(topology.host_of[rank]);
    rank = end;
  }
  return text;
}

std::string hosts_text(const std::vector<std::string>& names) {
  std::set<std::string> series;
  for (const std::string& name : names) {
    std::string one;
    for (const char letter : name) {
      const bool digit = std::isdigit(static_cast<unsigned char>(letter)) != 0;
      if (!digit) one += letter;
      if (digit && (one.empty() || one.back() != '#')) one += '#';
    }
    series.insert(std::move(one));
  }
  std::string text;
  for (const std::string& one : series) text += (text.empty() ? "" : ",") + one;
  return text;
}

}  // namespace gradred
