#include "base/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace gradred {

// Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals", 1966.
std::size_t letters_apart(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::size_t nearest(std::string_view word, std::span<const std::string_view> words) {
  const auto found = std::ranges::min_element(
      words, {}, [&](std::string_view one) { return letters_apart(word, one); });
  return static_cast<std::size_t>(found - words.begin());
}

std::optional<std::size_t> meant(std::string_view word, std::span<const std::string_view> words) {
  const std::size_t found = nearest(word, words);
  const std::string_view near = words[found];
  const bool close = 2 * letters_apart(word, near) <= std::max(word.size(), near.size());
  return close ? std::optional(found) : std::nullopt;
}

}  // namespace gradred
