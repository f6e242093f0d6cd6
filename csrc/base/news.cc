#include "base/news.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace gradred {
namespace {

std::atomic<const NewsPage*> news_page{nullptr};

std::uint64_t entries_of(const NewsPage* page) {
  if (page == nullptr) return 0;
  return __atomic_load_n(&page->entries, __ATOMIC_ACQUIRE);
}

}  // namespace

void use_news_page(const NewsPage* page) { news_page.store(page, std::memory_order_release); }

bool any_news() { return entries_of(news_page.load(std::memory_order_acquire)) != 0; }

std::optional<std::pair<std::size_t, std::string>> failure_among(std::span<const int> world_ranks) {
  const NewsPage* page = news_page.load(std::memory_order_acquire);
  const auto entries = std::min<std::uint64_t>(entries_of(page), NewsPage::kEntries);
  for (std::uint64_t i = 0; i < entries; ++i) {
    const NewsPage::Entry& entry = page->entry[i];
    const auto found = std::ranges::find(world_ranks, entry.rank);
    if (found == world_ranks.end()) continue;
    std::string text(entry.text, strnlen(entry.text, sizeof entry.text));
    const std::string name = "rank " + std::to_string(entry.rank);
    if (text.starts_with(name)) text.erase(0, name.size());
    return std::pair(static_cast<std::size_t>(found - world_ranks.begin()), std::move(text));
  }
  return std::nullopt;
}

std::optional<std::string> verdict_among(std::span<const int> world_ranks) {
  const NewsPage* page = news_page.load(std::memory_order_acquire);
  const auto entries = std::min<std::uint64_t>(entries_of(page), NewsPage::kEntries);
  for (std::uint64_t i = 0; i < entries; ++i) {
    const NewsPage::Entry& entry = page->entry[i];
    if (entry.verdict[0] == 0 || std::ranges::find(world_ranks, entry.rank) == world_ranks.end()) {
      continue;
    }
    return std::string(entry.verdict, strnlen(entry.verdict, sizeof entry.verdict));
  }
  return std::nullopt;
}

std::vector<int> failures_among(std::span<const int> world_ranks) {
  const NewsPage* page = news_page.load(std::memory_order_acquire);
  const auto entries = std::min<std::uint64_t>(entries_of(page), NewsPage::kEntries);
  std::vector<int> places;
  for (std::uint64_t i = 0; i < entries; ++i) {
    const auto found = std::ranges::find(world_ranks, page->entry[i].rank);
    if (found != world_ranks.end()) {
      places.push_back(static_cast<int>(found - world_ranks.begin()));
    }
  }
  return places;
}

}  // namespace gradred
