// Texts of fixed size, for shared memory and for messages of plain bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace gradred {

// Stores as much of `text` as fits, followed by a zero byte. A text that is cut ends with a whole
// word and dots, since half a number would be misread.
template <std::size_t n>
void set_text(char (&target)[n], std::string_view text) {
  constexpr std::string_view kDots = " ...";
  static_assert(n > kDots.size());
  const bool cut = text.size() >= n;
  if (cut) {
    text = text.substr(0, n - 1 - kDots.size());
    text = text.substr(0, std::min(text.rfind(' '), text.size()));
  }
  std::memcpy(target, text.data(), text.size());
  if (cut) std::memcpy(target + text.size(), kDots.data(), kDots.size());
  target[text.size() + (cut ? kDots.size() : 0)] = '\0';
}

}  // namespace gradred
