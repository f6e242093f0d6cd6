// How the element types are held while they are computed: `widen` a vector of memory, combine,
// `narrow` back. A vector of 16-bit floats becomes two of float32. Results that are NaN become
// canonical in `narrow`, so that a fold of many inputs pays for this once; until then a NaN stays a
// NaN in each operation.
#pragma once

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "reduce/kernels/vectors.h"

namespace gradred::GRADRED_ISA {
namespace {

template <class T>
struct Integers {
  using Scalar = T;
  using Wide = Vector<T>;

  static Wide widen(Raw raw) { return as<Wide>(raw); }
  static Raw narrow(Wide wide) { return as<Raw>(wide); }

  template <class F>
  static Wide combine(Wide a, Wide b) {
    return F::apply(a, b);
  }
};

template <class T>
Vector<T> canonical(Vector<T> x) {
  return x == x ? x : splat(static_cast<T>(__builtin_nan("")));
}

template <class T>
struct Reals {
  using Scalar = T;
  using Wide = Vector<T>;

  static Wide widen(Raw raw) { return as<Wide>(raw); }
  static Raw narrow(Wide wide) { return as<Raw>(canonical<T>(wide)); }
  static Wide all(T value) { return splat(value); }

  template <class F>
  static Wide combine(Wide a, Wide b) {
    return F::apply(a, b);
  }
};

using Floats = Vector<float>;
using Words = Vector<std::uint32_t>;
using Ints = Vector<std::int32_t>;

struct FloatPair {
  Floats first;
  Floats second;
};

template <class Format>
struct Halves {
  using Scalar = float;
  using Wide = FloatPair;

  static Wide widen(Raw raw) { return Format::widen(raw); }
  static Raw narrow(Wide wide) {
    return Format::narrow({canonical<float>(wide.first), canonical<float>(wide.second)});
  }
  static Wide all(float value) { return {splat(value), splat(value)}; }

  template <class F>
  static Wide combine(Wide a, Wide b) {
    return {F::apply(a.first, b.first), F::apply(a.second, b.second)};
  }
};

// 16-bit floats as integers that order like them, -0 before +0: min and max need no arithmetic.
// Each NaN becomes the number that wins: `first` the least, else the greatest.
template <class Format, bool first>
struct OrderedHalves {
  using Wide = Vector<std::int16_t>;

  static Wide widen(Raw raw) {
    constexpr std::int16_t kNan = first ? -0x8000 : 0x7fff;
    const Wide bits = as<Wide>(raw);
    return (bits & 0x7fff) > Format::kInfinity ? splat(kNan) : flipped(bits);
  }
  static Raw narrow(Wide wide) {
    const Wide bits = flipped(wide);
    return as<Raw>((bits & 0x7fff) > Format::kInfinity ? splat(Format::kNan) : bits);
  }

  template <class F>
  static Wide combine(Wide a, Wide b) {
    return F::apply(a, b);
  }

 private:
  static Wide flipped(Wide x) { return x ^ ((x >> 15) & 0x7fff); }  // its own inverse
};

struct BFloat16Bits {
  static constexpr std::int16_t kInfinity = 0x7f80;
  static constexpr std::int16_t kNan = 0x7fc0;
};

struct Float16Bits {
  static constexpr std::int16_t kInfinity = 0x7c00;
  static constexpr std::int16_t kNan = 0x7e00;
};

// The upper half of a float32. Elements with even and odd index go to different vectors: this needs
// no shuffle, and elementwise operations do not care.
struct BFloat16 : BFloat16Bits {
  static FloatPair widen(Raw raw) {
    const Words words = as<Words>(raw);
    return {as<Floats>(words << 16), as<Floats>(words & 0xffff0000U)};
  }
  static Raw narrow(FloatPair x) {
    return as<Raw>((rounded(x.first) >> 16) | (rounded(x.second) & 0xffff0000U));
  }

 private:
  // To nearest, ties to even, in the upper half; a carry into the exponent is right, also up to
  // infinity.
  static Words rounded(Floats x) {
    const Words bits = as<Words>(x);
    return bits + 0x7fffU + ((bits >> 16) & 1U);
  }
};

#if defined(__AVX512F__)

struct Float16 : Float16Bits {
  static FloatPair widen(Raw raw) {
    const __m512i bits = as<__m512i>(raw);
    return {as<Floats>(_mm512_cvtph_ps(_mm512_castsi512_si256(bits))),
            as<Floats>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)))};
  }
  static Raw narrow(FloatPair x) {
    const __m256i first = _mm512_cvtps_ph(as<__m512>(x.first), _MM_FROUND_TO_NEAREST_INT);
    const __m256i second = _mm512_cvtps_ph(as<__m512>(x.second), _MM_FROUND_TO_NEAREST_INT);
    return as<Raw>(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
  }
};

#elif defined(__F16C__) && defined(__AVX2__)

struct Float16 : Float16Bits {
  static FloatPair widen(Raw raw) {
    const __m256i bits = as<__m256i>(raw);
    return {as<Floats>(_mm256_cvtph_ps(_mm256_castsi256_si128(bits))),
            as<Floats>(_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)))};
  }
  static Raw narrow(FloatPair x) {
    const __m128i first = _mm256_cvtps_ph(as<__m256>(x.first), _MM_FROUND_TO_NEAREST_INT);
    const __m128i second = _mm256_cvtps_ph(as<__m256>(x.second), _MM_FROUND_TO_NEAREST_INT);
    return as<Raw>(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
  }
};

#elif defined(__ARM_NEON) && defined(GRADRED_FLOAT16_INSTRUCTIONS)

struct Float16 : Float16Bits {
  static FloatPair widen(Raw raw) {
    const float16x8_t bits = as<float16x8_t>(raw);
    return {as<Floats>(vcvt_f32_f16(vget_low_f16(bits))), as<Floats>(vcvt_high_f32_f16(bits))};
  }
  static Raw narrow(FloatPair x) {
    const float16x4_t first = vcvt_f16_f32(as<float32x4_t>(x.first));
    return as<Raw>(vcvt_high_f16_f32(first, as<float32x4_t>(x.second)));
  }
};

#else

// The same by integer arithmetic, without branches. Subnormal numbers take the way over float32
// addition and multiplication whose operands are normal there: flush-to-zero modes change nothing.
struct Float16 : Float16Bits {
  static FloatPair widen(Raw raw) {
    const Words words = as<Words>(raw);
    return {widened(words & 0xffffU), widened(words >> 16)};
  }
  static Raw narrow(FloatPair x) { return as<Raw>(narrowed(x.first) | (narrowed(x.second) << 16)); }

 private:
  static constexpr std::int32_t kRebias = (127 - 15)
                                          << 23;  // float32's exponent bias less float16's

  static Floats widened(Words half) {
    const Ints magnitude = as<Ints>(half & 0x7fffU);
    const Ints normal = (magnitude << 13) + kRebias;
    const Ints special = normal + kRebias;  // infinity and NaN: all bits of the exponent set
    const Ints subnormal = as<Ints>(__builtin_convertvector(magnitude, Floats) * 0x1p-24F);
    const Ints finite = magnitude < 0x400 ? subnormal : normal;
    const Ints value = magnitude >= 0x7c00 ? special : finite;
    return as<Floats>(as<Words>(value) | ((half & 0x8000U) << 16));
  }

  static Words narrowed(Floats x) {
    const Ints magnitude = as<Ints>(as<Words>(x) & 0x7fffffffU);
    const Ints normal = (magnitude - kRebias + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // One unit in the last place of 0.5F is float16's smallest number: the addition rounds to it.
    const Ints subnormal = as<Ints>(as<Floats>(magnitude) + 0.5F) - 0x3f000000;
    const Ints finite = magnitude < 0x38800000 ? subnormal : normal;  // below 2^-14
    const Ints infinite = magnitude > 0x7f800000 ? splat(0x7e00) : splat(0x7c00);
    const Ints value = magnitude >= 0x477ff000 ? infinite : finite;  // 65520 rounds up
    return as<Words>(value) | ((as<Words>(x) >> 16) & 0x8000U);
  }
};

#endif

}  // namespace
}  // namespace gradred::GRADRED_ISA
