// Copies of bytes that are fast wherever both places lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gradred {

// `rep movsb`, by which memcpy copies from some KiB on, takes up to 20 times as long on AMD's
// family 25 where the target begins 1 to 31 bytes behind the source, counted within a page. So does
// each copy from the beginning of a page into a long array of NumPy, which begins 16 bytes after
// that of a page.
inline bool string_copy_is_slow(const void* target, const void* source) {
  constexpr std::uintptr_t kPage = 4096, kNear = 32;
  const auto to = reinterpret_cast<std::uintptr_t>(target);
  const auto from = reinterpret_cast<std::uintptr_t>(source);
  return (to - from - 1) % kPage < kNear - 1;
}

// For shorter copies, the start-up time of the string instruction costs more than it saves.
constexpr std::size_t kStringCopyFrom = 1024;

// As memcpy, by loads and stores of 16 bytes.
void copy_by_words(void* target, const void* source, std::size_t bytes);

// As memcpy, but no slower where the places lie so.
inline void copy_bytes(void* target, const void* source, std::size_t bytes) {
  if (bytes >= kStringCopyFrom && string_copy_is_slow(target, source)) [[unlikely]] {
    return copy_by_words(target, source, bytes);
  }
  std::memcpy(target, source, bytes);
}

}  // namespace gradred
