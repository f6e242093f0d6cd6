// How the element types are represented in computations: `widen` a vector of memory, combine, and
// `narrow` back. A vector of 16-bit floats becomes two vectors of float32; one of 8-bit floats
// becomes four. `narrow` makes NaN results canonical, so a fold of many inputs pays for this only
// once. Until then every operation keeps a NaN a NaN.
#pragma once

#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include <complex>
#include <limits>
#include <tuple>
#include <utility>

#include "base/types.h"
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

// A vector of narrow floats as float32, split into n parts.
template <std::size_t n>
struct Floated {
  Floats part[n];
};

// Floats of 16 or 8 bits, computed in float32.
template <class Format>
struct Narrow {
  using Scalar = float;
  static constexpr std::size_t kParts = sizeof(float) / sizeof(typename Format::Lane);
  using Wide = Floated<kParts>;
  using Parts = std::make_index_sequence<kParts>;

  static Wide widen(Raw raw) { return Format::widen(raw); }
  static Raw narrow(Wide wide) { return Format::narrow(canonical_parts(wide, Parts())); }
  static Wide all(float value) { return all_parts(value, Parts()); }

  template <class F>
  static Wide combine(Wide a, Wide b) {
    return combine_parts<F>(a, b, Parts());
  }

 private:
  template <std::size_t... i>
  static Wide canonical_parts(Wide wide, std::index_sequence<i...>) {
    return {{canonical<float>(wide.part[i])...}};
  }
  template <std::size_t... i>
  static Wide all_parts(float value, std::index_sequence<i...>) {
    return {{(static_cast<void>(i), splat(value))...}};
  }
  template <class F, std::size_t... i>
  static Wide combine_parts(Wide a, Wide b, std::index_sequence<i...>) {
    return {{F::apply(a.part[i], b.part[i])...}};
  }
};

// Narrow floats as integers with the same order, -0 before +0, so that min and max need no
// arithmetic. Each NaN becomes the number that wins: the least one if `first`, else the greatest.
template <class Format, bool first>
struct Ordered {
  using Lane = typename Format::Lane;
  using Wide = Vector<Lane>;

  static Wide widen(Raw raw) {
    constexpr Lane kNan = first ? std::numeric_limits<Lane>::min() : kMagnitude;
    const Wide bits = as<Wide>(raw);
    return (bits & kMagnitude) > Format::kInfinity ? splat(kNan) : flipped(bits);
  }
  static Raw narrow(Wide wide) {
    const Wide bits = flipped(wide);
    return as<Raw>((bits & kMagnitude) > Format::kInfinity ? splat(Format::kNan) : bits);
  }

  template <class F>
  static Wide combine(Wide a, Wide b) {
    return F::apply(a, b);
  }

 private:
  static constexpr Lane kMagnitude = std::numeric_limits<Lane>::max();
  // This function is its own inverse.
  static Wide flipped(Wide x) { return x ^ ((x >> (8 * sizeof(Lane) - 1)) & kMagnitude); }
};

// The bits of each format. kInfinity is the greatest magnitude that is not NaN.
struct BFloat16Bits {
  using Lane = std::int16_t;
  static constexpr Lane kInfinity = 0x7f80;
  static constexpr Lane kNan = 0x7fc0;
};

struct Float16Bits {
  using Lane = std::int16_t;
  static constexpr Lane kInfinity = 0x7c00;
  static constexpr Lane kNan = 0x7e00;
  static constexpr int kMantissa = 10;
  static constexpr int kBias = 15;
  static constexpr float kOverflow = 65520;  // the least float32 that becomes kOverflows
  static constexpr Lane kOverflows = kInfinity;
};

// This format has no infinities: a number that is too large becomes NaN, as in ml_dtypes and
// PyTorch.
struct Float8E4M3FNBits {
  using Lane = std::int8_t;
  static constexpr Lane kInfinity = 0x7e;
  static constexpr Lane kNan = 0x7f;
  static constexpr int kMantissa = 3;
  static constexpr int kBias = 7;
  // Just above 464, a tie that is rounded to 448.
  static constexpr float kOverflow = 0x1.d00002p+8F;
  static constexpr Lane kOverflows = kNan;
};

struct Float8E5M2Bits {
  using Lane = std::int8_t;
  static constexpr Lane kInfinity = 0x7c;
  static constexpr Lane kNan = 0x7e;
  static constexpr int kMantissa = 2;
  static constexpr int kBias = 15;
  static constexpr float kOverflow = 61440;
  static constexpr Lane kOverflows = kInfinity;
};

// Converts between such a format and float32 by integer arithmetic without branches. Subnormal
// numbers go through a float32 addition or multiplication whose operands are normal, so
// flush-to-zero modes change nothing.
template <class Bits>
struct ByIntegers {
  // Takes bits in the lowest part of each word.
  static Floats widened(Words narrow) {
    const Ints magnitude = as<Ints>(narrow & kMagnitude);
    const Ints normal = (magnitude << kShift) + kRebias;
    const Ints subnormal = as<Ints>(__builtin_convertvector(magnitude, Floats) * kSmallest);
    const Ints finite = magnitude < (1 << Bits::kMantissa) ? subnormal : normal;
    const Ints special = magnitude > Bits::kInfinity ? splat(0x7fc00000) : splat(0x7f800000);
    const Ints value = magnitude >= kSpecial ? special : finite;
    return as<Floats>(as<Words>(value) | ((narrow & (kMagnitude + 1)) << (32 - kBits)));
  }

  // Rounds to nearest, ties to even. A NaN becomes positive.
  static Words narrowed(Floats x) {
    const Ints magnitude = as<Ints>(as<Words>(x) & 0x7fffffffU);
    constexpr std::int32_t kBelowHalf = (1 << (kShift - 1)) - 1;
    const Ints normal = (magnitude - kRebias + kBelowHalf + ((magnitude >> kShift) & 1)) >> kShift;
    // One unit in the last place of kAligned is the smallest number of the format, so the addition
    // rounds to it.
    const Ints subnormal = as<Ints>(as<Floats>(magnitude) + kAligned) - bits_of(kAligned);
    const Ints finite = magnitude < bits_of(kLeastNormal) ? subnormal : normal;
    const Ints too_large = magnitude > 0x7f800000 ? splat(std::int32_t{Bits::kNan})
                                                  : splat(std::int32_t{Bits::kOverflows});
    const Ints value = magnitude >= bits_of(Bits::kOverflow) ? too_large : finite;
    const Words sign = (as<Words>(x) >> (32 - kBits)) & (kMagnitude + 1);
    return as<Words>(value) | (value > Bits::kInfinity ? Words{} : sign);
  }

 private:
  static constexpr int kBits = 8 * sizeof(typename Bits::Lane);
  static constexpr std::uint32_t kMagnitude = (1U << (kBits - 1)) - 1;
  static constexpr int kShift = 23 - Bits::kMantissa;
  static constexpr std::int32_t kRebias = (127 - Bits::kBias) << 23;  // of the exponent
  static constexpr std::int32_t kSpecial =
      Bits::kOverflows == Bits::kInfinity ? Bits::kInfinity : Bits::kNan;

  static constexpr std::int32_t bits_of(float x) { return __builtin_bit_cast(std::int32_t, x); }
  static constexpr float power_of_two(int exponent) {
    return __builtin_bit_cast(float, (127 + exponent) << 23);
  }
  static constexpr float kLeastNormal = power_of_two(1 - Bits::kBias);
  static constexpr float kSmallest = power_of_two(1 - Bits::kBias - Bits::kMantissa);
  static constexpr float kAligned = power_of_two(1 - Bits::kBias - Bits::kMantissa + 23);
};

// Four 8-bit floats per word: each part has every fourth element.
template <class Bits>
struct Float8 : Bits {
  static Floated<4> widen(Raw raw) {
    const Words words = as<Words>(raw);
    return {{widened(words & 0xffU), widened((words >> 8) & 0xffU), widened((words >> 16) & 0xffU),
             widened(words >> 24)}};
  }
  static Raw narrow(Floated<4> x) {
    return as<Raw>(narrowed(x.part[0]) | (narrowed(x.part[1]) << 8) | (narrowed(x.part[2]) << 16) |
                   (narrowed(x.part[3]) << 24));
  }

 private:
  static Floats widened(Words narrow) { return ByIntegers<Bits>::widened(narrow); }
  static Words narrowed(Floats x) { return ByIntegers<Bits>::narrowed(x); }
};

using Float8E4M3FN = Float8<Float8E4M3FNBits>;
using Float8E5M2 = Float8<Float8E5M2Bits>;

// bfloat16 is the upper half of a float32. Elements with even and odd index go to different
// vectors: this needs no shuffle, and elementwise operations do not depend on the order.
struct BFloat16 : BFloat16Bits {
  static Floated<2> widen(Raw raw) {
    const Words words = as<Words>(raw);
    return {{as<Floats>(words << 16), as<Floats>(words & 0xffff0000U)}};
  }
  static Raw narrow(Floated<2> x) {
    return as<Raw>((rounded(x.part[0]) >> 16) | (rounded(x.part[1]) & 0xffff0000U));
  }

 private:
  // Rounds to nearest, ties to even, in the upper half. A carry into the exponent is correct, even
  // up to infinity.
  static Words rounded(Floats x) {
    const Words bits = as<Words>(x);
    return bits + 0x7fffU + ((bits >> 16) & 1U);
  }
};

#if defined(__AVX512F__)

struct Float16 : Float16Bits {
  static Floated<2> widen(Raw raw) {
    const __m512i bits = as<__m512i>(raw);
    return {{as<Floats>(_mm512_cvtph_ps(_mm512_castsi512_si256(bits))),
             as<Floats>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)))}};
  }
  static Raw narrow(Floated<2> x) {
    const __m256i first = _mm512_cvtps_ph(as<__m512>(x.part[0]), _MM_FROUND_TO_NEAREST_INT);
    const __m256i second = _mm512_cvtps_ph(as<__m512>(x.part[1]), _MM_FROUND_TO_NEAREST_INT);
    return as<Raw>(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1));
  }
};

#elif defined(__F16C__) && defined(__AVX2__)

struct Float16 : Float16Bits {
  static Floated<2> widen(Raw raw) {
    const __m256i bits = as<__m256i>(raw);
    return {{as<Floats>(_mm256_cvtph_ps(_mm256_castsi256_si128(bits))),
             as<Floats>(_mm256_cvtph_ps(_mm256_extracti128_si256(bits, 1)))}};
  }
  static Raw narrow(Floated<2> x) {
    const __m128i first = _mm256_cvtps_ph(as<__m256>(x.part[0]), _MM_FROUND_TO_NEAREST_INT);
    const __m128i second = _mm256_cvtps_ph(as<__m256>(x.part[1]), _MM_FROUND_TO_NEAREST_INT);
    return as<Raw>(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
  }
};

#elif defined(__ARM_NEON) && defined(GRADRED_FLOAT16_INSTRUCTIONS)

struct Float16 : Float16Bits {
  static Floated<2> widen(Raw raw) {
    const float16x8_t bits = as<float16x8_t>(raw);
    return {{as<Floats>(vcvt_f32_f16(vget_low_f16(bits))), as<Floats>(vcvt_high_f32_f16(bits))}};
  }
  static Raw narrow(Floated<2> x) {
    const float16x4_t first = vcvt_f16_f32(as<float32x4_t>(x.part[0]));
    return as<Raw>(vcvt_high_f16_f32(first, as<float32x4_t>(x.part[1])));
  }
};

#else

struct Float16 : Float16Bits {
  static Floated<2> widen(Raw raw) {
    const Words words = as<Words>(raw);
    return {{Converted::widened(words & 0xffffU), Converted::widened(words >> 16)}};
  }
  static Raw narrow(Floated<2> x) {
    return as<Raw>(Converted::narrowed(x.part[0]) | (Converted::narrowed(x.part[1]) << 16));
  }

 private:
  using Converted = ByIntegers<Float16Bits>;
};

#endif

template <class T>
concept NarrowFloat = requires { typename T::Lane; };

// The representation of each DType, in the order of DType.
using Types =
    std::tuple<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
               std::uint32_t, std::uint64_t, bool, Float8E4M3FN, Float8E5M2, Float16, BFloat16,
               float, double, std::complex<float>, std::complex<double>>;
static_assert(std::tuple_size_v<Types> == kDTypes);

}  // namespace
}  // namespace gradred::GRADRED_ISA
