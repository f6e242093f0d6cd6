// Vectors as wide as those of the instruction set that this file is compiled for, in the compiler's
// own vector types. Only partial loads need intrinsics. Everything has internal linkage: the linker
// could share an inline function between instruction sets, which would then use instructions that
// the processor lacks.
#pragma once

#if defined(__AVX512BW__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

namespace gradred::GRADRED_ISA {
namespace {

#if defined(__AVX512BW__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;  // SSE2, NEON
#endif

template <class T>
struct VectorOf {
  using type [[gnu::vector_size(kVectorBytes)]] = T;
};
template <class T>
using Vector = typename VectorOf<T>::type;
using Raw = Vector<std::uint8_t>;  // bytes of memory without an element type

template <class T>
constexpr std::size_t kLanes = kVectorBytes / sizeof(T);

template <class To, class From>
To as(From from) {
  return __builtin_bit_cast(To, from);
}

template <class T>
Vector<T> splat(T value) {
  return Vector<T>{} + value;
}

Raw load(const char* from) {
  Raw raw;
  __builtin_memcpy(&raw, from, sizeof raw);
  return raw;
}

void store(char* to, Raw raw) { __builtin_memcpy(to, &raw, sizeof raw); }

#if defined(__AVX512BW__)

// Loads the first `bytes` (less than a vector) of memory; the other lanes are zero.
Raw load_part(const char* from, std::size_t bytes) {
  return as<Raw>(_mm512_maskz_loadu_epi8((__mmask64{1} << bytes) - 1, from));
}

void store_part(char* to, Raw raw, std::size_t bytes) {
  _mm512_mask_storeu_epi8(to, (__mmask64{1} << bytes) - 1, as<__m512i>(raw));
}

#else

// Copies N to 2N bytes as two parts that may overlap, without a loop or a call.
template <std::size_t N>
void copy_ends(char* to, const char* from, std::size_t bytes) {
  char head[N];
  char tail[N];
  __builtin_memcpy(head, from, N);
  __builtin_memcpy(tail, from + bytes - N, N);
  __builtin_memcpy(to, head, N);
  __builtin_memcpy(to + bytes - N, tail, N);
}

void copy_part(char* to, const char* from, std::size_t bytes) {
  if (bytes >= 16) {
    copy_ends<16>(to, from, bytes);
  } else if (bytes >= 8) {
    copy_ends<8>(to, from, bytes);
  } else if (bytes >= 4) {
    copy_ends<4>(to, from, bytes);
  } else if (bytes >= 2) {
    copy_ends<2>(to, from, bytes);
  } else {
    *to = *from;
  }
}

// Loads the first `bytes` (less than a vector) of memory; the other lanes are zero.
Raw load_part(const char* from, std::size_t bytes) {
  char padded[kVectorBytes] = {};
  copy_part(padded, from, bytes);
  return load(padded);
}

void store_part(char* to, Raw raw, std::size_t bytes) {
  char padded[kVectorBytes];
  store(padded, raw);
  copy_part(to, padded, bytes);
}

#endif

}  // namespace
}  // namespace gradred::GRADRED_ISA
