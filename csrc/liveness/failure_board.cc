#include "liveness/failure_board.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>

namespace gradred {
namespace {

// The board without its first line. Set when the process starts.
std::span<const char> lines;
// Points to lines.front(), or to a zero byte. As long as the byte is 0, there is no line.
constexpr char kNothing = 0;
std::atomic<const char*> first{&kNothing};

struct Entry {
  int rank = -1;  // in MPI_COMM_WORLD
  std::string_view text, report;
};

Entry entry_of(std::string_view line) {
  Entry entry;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), entry.rank);
  if (error != std::errc() || end == line.data() + line.size()) return {};
  line.remove_prefix(static_cast<std::size_t>(end - line.data()) + 1);
  const std::size_t tab = line.find('\t');
  if (tab == std::string_view::npos) return {};
  entry.text = line.substr(0, tab);
  entry.report = line.substr(tab + 1);
  return entry;
}

std::vector<Entry> entries() {
  std::vector<Entry> found;
  if (!any_rank_failed()) return found;
  std::string_view rest(lines.data(), lines.size());
  for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    found.push_back(entry_of(rest.substr(0, end)));
    rest.remove_prefix(end + 1);
  }
  return found;
}

}  // namespace

bool use_failure_board(std::span<const char> page, std::string_view token) {
  const std::string_view text(page.data(), page.size());
  if (!text.starts_with(token) || text.size() <= token.size() + 1 || text[token.size()] != '\n') {
    return false;
  }
  lines = page.subspan(token.size() + 1);
  first.store(lines.data(), std::memory_order_release);
  return true;
}

bool any_rank_failed() {
  const char* const begin = first.load(std::memory_order_acquire);
  return __atomic_load_n(begin, __ATOMIC_ACQUIRE) != 0;
}

std::optional<std::pair<std::size_t, std::string>> failure_among(std::span<const int> world_ranks) {
  for (const Entry& entry : entries()) {
    const auto found = std::ranges::find(world_ranks, entry.rank);
    if (found == world_ranks.end()) continue;
    return std::pair(static_cast<std::size_t>(found - world_ranks.begin()),
                     std::string(entry.text));
  }
  return std::nullopt;
}

std::optional<FailureReport> report_among(std::span<const int> world_ranks) {
  for (const Entry& entry : entries()) {
    if (std::ranges::find(world_ranks, entry.rank) == world_ranks.end()) continue;
    if (auto report = read_report(entry.report)) return report;
  }
  return std::nullopt;
}

std::vector<int> failures_among(std::span<const int> world_ranks) {
  std::vector<int> places;
  for (const Entry& entry : entries()) {
    const auto found = std::ranges::find(world_ranks, entry.rank);
    if (found != world_ranks.end()) {
      places.push_back(static_cast<int>(found - world_ranks.begin()));
    }
  }
  return places;
}

}  // namespace gradred
