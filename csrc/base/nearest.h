// Finds the known word that a misspelled word may mean.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace gradred {

// The number of letters to insert, delete or replace (the Levenshtein distance).
std::size_t letters_apart(std::string_view a, std::string_view b);
// The index of the word with the smallest distance. `words` must not be empty.
std::size_t nearest(std::string_view word, std::span<const std::string_view> words);
// The same, or nothing if more than half of the longer word would have to change.
std::optional<std::size_t> meant(std::string_view word, std::span<const std::string_view> words);

}  // namespace gradred
