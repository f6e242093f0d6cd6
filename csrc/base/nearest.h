// Which word somebody may have meant.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace gradred {

// How many letters must be put in, left out or replaced.
std::size_t letters_apart(std::string_view a, std::string_view b);
// The place of the word with the fewest letters apart; there must be one.
std::size_t nearest(std::string_view word, std::span<const std::string_view> words);
// Likewise, unless less than half of it is right.
std::optional<std::size_t> meant(std::string_view word, std::span<const std::string_view> words);

}  // namespace gradred
