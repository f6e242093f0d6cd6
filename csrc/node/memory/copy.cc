#include "node/memory/copy.h"

#include <algorithm>

#include "base/copy_bytes.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace gradred {

#if defined(__x86_64__)

constexpr std::size_t kStreamLine = 64;

void copy_out(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes < kStringCopyFrom || string_copy_is_slow(target, source)) {
    return copy_bytes(target, source, bytes);
  }
  asm volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(bytes) : : "memory");
}

// SSE2 is part of x86-64. Wider registers gain nothing, since the stores leave as whole cache lines
// anyway.
void copy_streaming(std::byte* target, const std::byte* source, std::size_t bytes) {
  const auto to_line =
      (kStreamLine - reinterpret_cast<std::uintptr_t>(target) % kStreamLine) % kStreamLine;
  const std::size_t ragged = std::min(to_line, bytes);
  std::memcpy(target, source, ragged);
  std::size_t at = ragged;
  for (; at + kStreamLine <= bytes; at += kStreamLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* to = reinterpret_cast<__m128i*>(target + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1),
                  c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(target + at, source + at, bytes - at);
  _mm_sfence();  // streaming stores are not ordered by a release
}

namespace {

bool has_flushes() {
  constexpr unsigned kClflushopt = 1U << 23;  // bit of ebx in leaf 7
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kClflushopt) != 0;
}

__attribute__((target("clflushopt"))) void flush(const std::byte* line) {
  _mm_clflushopt(const_cast<std::byte*>(line));
}

}  // namespace

void hand_back(const std::byte* data, std::size_t bytes) {
  static const bool can = has_flushes();
  if (!can) return;
  const std::size_t ahead = reinterpret_cast<std::uintptr_t>(data) % kStreamLine;
  const std::byte* const end = data + bytes;
  for (const std::byte* line = data - ahead; line < end; line += kStreamLine) flush(line);
}

#else

void copy_out(std::byte* target, const std::byte* source, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

void copy_streaming(std::byte* target, const std::byte* source, std::size_t bytes) {
  std::memcpy(target, source, bytes);
}

void hand_back(const std::byte*, std::size_t) {}

#endif

Copy copy_of_results(bool streams) {
  if (streams) return copy_streaming;
  return [](std::byte* target, const std::byte* source, std::size_t bytes) {
    copy_bytes(target, source, bytes);
  };
}

}  // namespace gradred
