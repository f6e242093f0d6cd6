// Texts of fixed size, for memory that processes share and for messages of plain bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace gradred {

// Keeps as much of `text` as fits, and ends it with a zero byte.
template <std::size_t n>
void set_text(char (&target)[n], std::string_view text) {
  const std::size_t length = std::min(text.size(), n - 1);
  std::memcpy(target, text.data(), length);
  target[length] = '\0';
}

}  // namespace gradred
