// What the launcher says of ranks that have failed, on whatever host: this rank's keeper writes it
// (src/gradred/_news.py), and this process only reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gradred {

// Lies in memory of another process, mapped by Python. Entries are only ever added.
struct NewsPage {
  static constexpr std::size_t kEntries = 16;  // who reads them has heard enough

  struct Entry {
    std::int64_t rank;  // in MPI_COMM_WORLD
    char text[248];     // "rank 2 on h1 was killed by SIGKILL"
    char verdict[256];  // what gradred had told it, "TimeoutError: ..."; empty: nothing
  };

  char token[64];
  std::uint64_t entries;
  Entry entry[kEntries];
};
static_assert(sizeof(NewsPage) == 64 + 8 + 16 * 512);

void use_news_page(const NewsPage* page);  // null: none
// Whether any rank of the job has failed; costs nothing.
bool any_news();
// The first of these ranks of MPI_COMM_WORLD that has failed, by its place among them, and how:
// " on h2 was killed by SIGKILL".
std::optional<std::pair<std::size_t, std::string>> failure_among(std::span<const int> world_ranks);
// The first verdict that any of them had before it failed.
std::optional<std::string> verdict_among(std::span<const int> world_ranks);
// All of them that have failed, by their places.
std::vector<int> failures_among(std::span<const int> world_ranks);

}  // namespace gradred
