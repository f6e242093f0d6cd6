#include "base/copy_bytes.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace gradred {

#if defined(__x86_64__)

// Four loads before four stores: the compiler must not make a memcpy of them.
void copy_by_words(void* target, const void* source, std::size_t bytes) {
  constexpr std::size_t kStep = 64;
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  std::size_t at = 0;
  for (; at + kStep <= bytes; at += kStep) {
    const auto* in = reinterpret_cast<const __m128i*>(from + at);
    auto* out = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_storeu_si128(out, a);
    _mm_storeu_si128(out + 1, b);
    _mm_storeu_si128(out + 2, c);
    _mm_storeu_si128(out + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

#else

void copy_by_words(void* target, const void* source, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

#endif

}  // namespace gradred
