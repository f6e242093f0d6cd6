// The loops of wire.h, on whole blocks.
#pragma once

#include "reduce/kernels/elements.h"
#include "reduce/kernels/reduce_functions.h"
#include "reduce/kernels/vectors.h"

namespace gradred::GRADRED_ISA {
namespace {

constexpr std::size_t kPerVector = kLanes<float>;
constexpr std::int32_t kInfinityBits = 0x7f800000;
constexpr float kLeastScale = 0x1p-126F;  // below it a quotient may pass the largest code
constexpr float kMostFloat = 0x1.fffffep127F;

// As many elements of a narrow type as a vector has float32s.
template <class T>
struct CodesOf {
  using type [[gnu::vector_size(kPerVector * sizeof(T))]] = T;
};
template <class T>
using Codes = typename CodesOf<T>::type;

template <class V>
V at(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}
template <class V>
void put(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// The bits of the largest magnitude; of an infinity or NaN if there is one.
std::int32_t largest_bits(const float* values) {
  Ints most = {};
  for (std::size_t i = 0; i < kWireBlock; i += kPerVector) {
    const Ints bits = at<Ints>(values + i) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  std::int32_t found = 0;
  for (std::size_t lane = 0; lane < kPerVector; ++lane) {
    if (most[lane] > found) found = most[lane];
  }
  return found;
}

// To the nearest whole number, ties to even, of magnitudes below 2^22.
Ints rounded(Floats x) {
  constexpr float kAligned = 0x1.8p23F;
  return as<Ints>(x + kAligned) - __builtin_bit_cast(std::int32_t, kAligned);
}

// ---- formats of 16 bits, without a scale ------------------------------------------------------

struct BFloat16Wire {
  static Words narrowed(Floats x) {
    const Words bits = as<Words>(x);
    const Words nearest = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const Ints magnitude = as<Ints>(bits & 0x7fffffffU);
    return magnitude > kInfinityBits ? splat(std::uint32_t{0x7fc0}) : nearest;
  }
  static Floats widened(Words bits) { return as<Floats>(bits << 16); }
};

using Float16Wire = ByIntegers<Float16Bits>;

template <class Format>
void encode_halves(const float* values, std::size_t blocks, std::byte* to) {
  for (std::size_t i = 0; i < blocks * kWireBlock; i += kPerVector) {
    const Words bits = Format::narrowed(at<Floats>(values + i));
    put(to + 2 * i, __builtin_convertvector(bits, Codes<std::uint16_t>));
  }
}

template <class Format, bool adds>
void decode_halves(const std::byte* from, std::size_t blocks, float* values) {
  for (std::size_t i = 0; i < blocks * kWireBlock; i += kPerVector) {
    const auto bits = at<Codes<std::uint16_t>>(from + 2 * i);
    const Floats x = Format::widened(__builtin_convertvector(bits, Words));
    put(values + i, adds ? at<Floats>(values + i) + x : x);
  }
}

// ---- formats with a scale ---------------------------------------------------------------------

struct Int8Wire {
  static constexpr float kMost = 127;
  static constexpr std::size_t kBytes = kWireBlock;
  static void encode(const float* values, float scale, std::byte* to) {
    for (std::size_t i = 0; i < kWireBlock; i += kPerVector) {
      const Ints whole = rounded(at<Floats>(values + i) / scale);
      put(to + i, __builtin_convertvector(whole, Codes<std::int8_t>));
    }
  }
  static Floats decoded(const std::byte* from, std::size_t i) {
    const auto whole = at<Codes<std::int8_t>>(from + i);
    return __builtin_convertvector(__builtin_convertvector(whole, Ints), Floats);
  }
};

// Numbers i and i + 64 share a byte.
struct Int4Wire {
  static constexpr float kMost = 7;
  static constexpr std::size_t kBytes = kWireBlock / 2;
  static void encode(const float* values, float scale, std::byte* to) {
    for (std::size_t i = 0; i < kBytes; i += kPerVector) {
      const Ints low = rounded(at<Floats>(values + i) / scale);
      const Ints high = rounded(at<Floats>(values + kBytes + i) / scale);
      const Words both = (as<Words>(low) & 15U) | ((as<Words>(high) & 15U) << 4);
      put(to + i, __builtin_convertvector(both, Codes<std::uint8_t>));
    }
  }
  static Floats decoded(const std::byte* from, std::size_t i) {
    const auto both = at<Codes<std::uint8_t>>(from + i % kBytes);
    const Words bits = __builtin_convertvector(both, Words) >> (i < kBytes ? 0 : 4);
    const Ints whole = (as<Ints>(bits & 15U) ^ 8) - 8;
    return __builtin_convertvector(whole, Floats);
  }
};

struct Float8Wire {
  using Format = ByIntegers<Float8E4M3FNBits>;
  static constexpr float kMost = 448;
  static constexpr std::size_t kBytes = kWireBlock;
  static void encode(const float* values, float scale, std::byte* to) {
    for (std::size_t i = 0; i < kWireBlock; i += kPerVector) {
      const Words bits = Format::narrowed(at<Floats>(values + i) / scale);
      put(to + i, __builtin_convertvector(bits, Codes<std::uint8_t>));
    }
  }
  static Floats decoded(const std::byte* from, std::size_t i) {
    const auto bits = at<Codes<std::uint8_t>>(from + i);
    return Format::widened(__builtin_convertvector(bits, Words));
  }
};

template <class Format>
constexpr std::size_t kBlockBytes = sizeof(float) + Format::kBytes;

template <class Format>
void encode_blocks(const float* values, std::size_t blocks, std::byte* to) {
  for (std::size_t b = 0; b < blocks; ++b, values += kWireBlock, to += kBlockBytes<Format>) {
    const std::int32_t bits = largest_bits(values);
    float scale = __builtin_bit_cast(float, bits) / Format::kMost;
    if (bits >= kInfinityBits) {
      scale = __builtin_nanf("");
    } else if (scale < kLeastScale) {
      scale = 0;
    } else if (scale * Format::kMost > kMostFloat) {  // rounded up
      scale = __builtin_bit_cast(float, __builtin_bit_cast(std::int32_t, scale) - 1);
    }
    put(to, scale);
    if (scale > 0) {
      Format::encode(values, scale, to + sizeof scale);
    } else {  // zeros, numbers whose scale would be subnormal, NaN
      __builtin_memset(to + sizeof scale, 0, Format::kBytes);
    }
  }
}

template <class Format, bool adds>
void decode_blocks(const std::byte* from, std::size_t blocks, float* values) {
  for (std::size_t b = 0; b < blocks; ++b, values += kWireBlock, from += kBlockBytes<Format>) {
    const Floats scale = splat(at<float>(from));
    for (std::size_t i = 0; i < kWireBlock; i += kPerVector) {
      const Floats x = Format::decoded(from + sizeof(float), i) * scale;
      put(values + i, adds ? at<Floats>(values + i) + x : x);
    }
  }
}

template <class Format>
constexpr WireFunctions halves() {
  return {&encode_halves<Format>, &decode_halves<Format, false>, &decode_halves<Format, true>};
}
template <class Format>
constexpr WireFunctions scaled() {
  return {&encode_blocks<Format>, &decode_blocks<Format, false>, &decode_blocks<Format, true>};
}

}  // namespace
}  // namespace gradred::GRADRED_ISA
