// Elementwise reductions of vectors in a GPU's memory. Compiled at run time by NVRTC, in checks by
// nvcc, and in tests by g++ after csrc/tests/device/kernels_on_host.h. So it needs no headers but
// its own.
//
// The results have the same bits as those of csrc/reduce: NaN results are canonical, min and max
// propagate NaN and order -0 < +0, and integers wrap. 16-bit floats are computed in float32 and
// rounded once, even if the result is scaled.
//
// GRADRED_ELEMENT: the name of the element type to compile; if undefined, all types.
// GRADRED_USER_OP: the operation is the program's own function gradred_user_op, which is linked to
// the code; in tests all operations are compiled.

#ifndef GRADRED_REDUCE_CU
#define GRADRED_REDUCE_CU

#include "arguments.h"

#ifdef __CUDACC__
#define GRADRED_UNROLL _Pragma("unroll")
__device__ inline float gradred_from_half(unsigned bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<unsigned short>(bits)));
  return x;
}
__device__ inline unsigned gradred_to_half(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#else
#define GRADRED_UNROLL
#endif

namespace gradred_kernels {

// The unit of a thread's loads and stores.
struct alignas(16) Block {
  unsigned word[4];
};

// ---- arithmetic ---------------------------------------------------------------------------------

__device__ inline unsigned bits_of(float x) { return __float_as_uint(x); }
__device__ inline u64 bits_of(double x) { return static_cast<u64>(__double_as_longlong(x)); }
__device__ inline float number_of(unsigned bits) { return __uint_as_float(bits); }
__device__ inline double number_of(u64 bits) {
  return __longlong_as_double(static_cast<long long>(bits));
}

// The type in which arithmetic wraps.
template <class T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<int> {
  using Type = unsigned;
};
template <>
struct Wrapping<long long> {
  using Type = u64;
};

struct Sum {
  template <class T>
  __device__ static T apply(T a, T b) {
    using W = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
};
struct Prod {
  template <class T>
  __device__ static T apply(T a, T b) {
    using W = typename Wrapping<T>::Type;
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  }
};

// Equal floats differ at most in the signs of zeros. If a is neither less than, greater than nor
// equal to b, one of them is NaN, and so is their sum.
template <bool greatest>
struct Extremum {
  template <class T>
  __device__ static T apply(T a, T b) {
    return (a < b) == greatest ? b : a;
  }
  __device__ static float apply(float a, float b) { return real(a, b); }
  __device__ static double apply(double a, double b) { return real(a, b); }

 private:
  template <class T>
  __device__ static T real(T a, T b) {
    if (a < b) return greatest ? b : a;
    if (b < a) return greatest ? a : b;
    const auto zeros = greatest ? bits_of(a) & bits_of(b) : bits_of(a) | bits_of(b);
    return a == b ? number_of(zeros) : a + b;
  }
};
using Min = Extremum<false>;
using Max = Extremum<true>;

// ---- element types ------------------------------------------------------------------------------
//
// An element has Bits in memory, a Wide number for computations, and a Number type for the
// program's own functions.

template <class Wide>
struct Scaling {
  __device__ static Wide apply(Wide x, double factor, bool divide) {
    const auto by = static_cast<Wide>(factor);
    return divide ? x / by : x * by;
  }
};

// Exact by a whole number; by any other, computed in float64 and truncated toward zero. A value
// outside the range becomes its nearest end; NaN becomes 0. Integers are divided on the host alone.
template <class Wide, long long least, u64 end>  // `end`: the greatest value + 1, a power of two
struct IntegerScaling {
  __device__ static Wide apply(Wide x, double factor, bool) {
    constexpr double kEnd = 9223372036854775808.0;  // 2^63
    if (factor >= -kEnd && factor < kEnd) {
      const auto by = static_cast<long long>(factor);
      if (static_cast<double>(by) == factor) return times(static_cast<long long>(x), by);
    }
    const double scaled = static_cast<double>(x) * factor;
    if (!(scaled > static_cast<double>(least))) {
      return scaled <= static_cast<double>(least) ? static_cast<Wide>(least) : Wide{0};
    }
    if (scaled < static_cast<double>(end)) return static_cast<Wide>(scaled);
    return static_cast<Wide>(end - 1);
  }

 private:
  __device__ static u64 magnitude(long long x) {
    return x < 0 ? u64{0} - static_cast<u64>(x) : static_cast<u64>(x);
  }
  __device__ static Wide times(long long x, long long by) {
    const bool negative = (x < 0) != (by < 0);
    const u64 most = negative ? u64{0} - static_cast<u64>(least) : end - 1;
    const u64 one = magnitude(x), other = magnitude(by);
    const u64 product = other != 0 && one > most / other ? most : one * other;
    return static_cast<Wide>(negative ? u64{0} - product : product);
  }
};

struct float32 : Scaling<float> {
  using Bits = unsigned;
  using Wide = float;
  using Number = float;
  static constexpr unsigned kBytes = 4;
  __device__ static Wide widen(Bits bits) { return number_of(bits); }
  __device__ static Bits narrow(Wide x) { return x == x ? bits_of(x) : 0x7fc00000U; }
};

struct float64 : Scaling<double> {
  using Bits = u64;
  using Wide = double;
  using Number = double;
  static constexpr unsigned kBytes = 8;
  __device__ static Wide widen(Bits bits) { return number_of(bits); }
  __device__ static Bits narrow(Wide x) { return x == x ? bits_of(x) : 0x7ff8000000000000ULL; }
};

struct float16 : Scaling<float> {
  using Bits = unsigned;
  using Wide = float;
  using Number = float;
  static constexpr unsigned kBytes = 2;
  __device__ static Wide widen(Bits bits) { return gradred_from_half(bits); }
  __device__ static Bits narrow(Wide x) { return x == x ? gradred_to_half(x) : 0x7e00U; }
};

struct bfloat16 : Scaling<float> {
  using Bits = unsigned;
  using Wide = float;
  using Number = float;
  static constexpr unsigned kBytes = 2;
  __device__ static Wide widen(Bits bits) { return number_of(bits << 16); }
  // Rounds to nearest, ties to even. A carry into the exponent is correct, even up to infinity.
  __device__ static Bits narrow(Wide x) {
    const unsigned bits = bits_of(x);
    return x == x ? (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16 : 0x7fc0U;
  }
};

// 8-bit floats. The parameters are the bits of the mantissa, the exponent's bias, the greatest
// magnitude that is not NaN, the NaN, the least float32 (as bits) that is too large, and its
// replacement.
template <unsigned mantissa, unsigned bias, unsigned infinity, unsigned nan, unsigned too_large,
          unsigned instead>
struct Float8 : Scaling<float> {
  using Bits = unsigned;
  using Wide = float;
  using Number = float;
  static constexpr unsigned kBytes = 1;
  static constexpr unsigned kShift = 23 - mantissa;
  static constexpr unsigned kRebias = (127 - bias) << 23;
  // As bits of float32: the least normal number, the smallest number, and a number whose last place
  // has that value, so that an addition rounds to it.
  static constexpr unsigned kLeastNormal = (128 - bias) << 23;
  static constexpr unsigned kSmallest = (128 - bias - mantissa) << 23;
  static constexpr unsigned kAligned = (128 - bias - mantissa + 23) << 23;

  __device__ static Wide widen(Bits bits) {
    const unsigned magnitude = bits & 0x7fU, sign = (bits & 0x80U) << 24;
    if (magnitude > infinity) return number_of(0x7fc00000U);
    if (magnitude == instead) return number_of(0x7f800000U | sign);
    if (magnitude >> mantissa != 0) return number_of(((magnitude << kShift) + kRebias) | sign);
    return number_of(bits_of(static_cast<float>(magnitude) * number_of(kSmallest)) | sign);
  }
  __device__ static Bits narrow(Wide x) {
    const unsigned magnitude = bits_of(x) & 0x7fffffffU, sign = bits_of(x) >> 24 & 0x80U;
    unsigned value = 0;
    if (magnitude >= too_large) {
      value = magnitude > 0x7f800000U ? nan : instead;
    } else if (magnitude < kLeastNormal) {
      value = bits_of(number_of(magnitude) + number_of(kAligned)) - kAligned;
    } else {
      const unsigned even = magnitude >> kShift & 1U;
      value = (magnitude - kRebias + ((1U << (kShift - 1)) - 1) + even) >> kShift;
    }
    return value > infinity ? value : value | sign;
  }
};
using float8_e4m3fn = Float8<3, 7, 0x7e, 0x7f, 0x43e80001U, 0x7f>;  // has no infinities
using float8_e5m2 = Float8<2, 15, 0x7c, 0x7e, 0x47700000U, 0x7c>;

struct int32 : IntegerScaling<int, -0x80000000LL, 0x80000000ULL> {
  using Bits = unsigned;
  using Wide = int;
  using Number = int;
  static constexpr unsigned kBytes = 4;
  __device__ static Wide widen(Bits bits) { return static_cast<Wide>(bits); }
  __device__ static Bits narrow(Wide x) { return static_cast<Bits>(x); }
};

struct int64 : IntegerScaling<long long, -0x7fffffffffffffffLL - 1, 0x8000000000000000ULL> {
  using Bits = u64;
  using Wide = long long;
  using Number = long long;
  static constexpr unsigned kBytes = 8;
  __device__ static Wide widen(Bits bits) { return static_cast<Wide>(bits); }
  __device__ static Bits narrow(Wide x) { return static_cast<Bits>(x); }
};

struct uint8 : IntegerScaling<unsigned, 0, 0x100> {
  using Bits = unsigned;
  using Wide = unsigned;
  using Number = unsigned char;
  static constexpr unsigned kBytes = 1;
  __device__ static Wide widen(Bits bits) { return bits; }
  __device__ static Bits narrow(Wide x) { return x & 0xffU; }
  __device__ static Wide apply(Wide x, double factor, bool divide) {
    return IntegerScaling::apply(narrow(x), factor, divide);  // narrow(): a sum may have wrapped
  }
};

// ---- the program's own --------------------------------------------------------------------------

#ifdef GRADRED_USER_OP
}  // namespace gradred_kernels
#ifdef __CUDACC__
extern "C" __device__ gradred_kernels::GRADRED_ELEMENT::Number gradred_user_op(
    gradred_kernels::GRADRED_ELEMENT::Number a, gradred_kernels::GRADRED_ELEMENT::Number b);
#endif
namespace gradred_kernels {

template <class Element>
struct User {
  using Wide = typename Element::Wide;
  using Number = typename Element::Number;
  __device__ static Wide apply(Wide a, Wide b) {
    return static_cast<Wide>(gradred_user_op(static_cast<Number>(a), static_cast<Number>(b)));
  }
};
#endif

// Access to elements by their width: one in a block, and a single one.
template <unsigned bytes>
struct Stored {  // for 1 and 2 bytes
  static constexpr unsigned kPerWord = 4 / bytes;
  static constexpr unsigned kMask = (1U << (8 * bytes)) - 1;
  __device__ static unsigned get(const Block& block, unsigned i) {
    return (block.word[i / kPerWord] >> (8 * bytes * (i % kPerWord))) & kMask;
  }
  __device__ static void put(Block& block, unsigned i, unsigned bits) {
    block.word[i / kPerWord] |= bits << (8 * bytes * (i % kPerWord));
  }
};
template <unsigned bytes>
struct Alone {
  using Type = unsigned short;
};
template <>
struct Alone<1> {
  using Type = unsigned char;
};
template <>
struct Alone<4> {
  using Type = unsigned;
};
template <>
struct Alone<8> {
  using Type = u64;
};
template <>
struct Stored<4> {
  __device__ static unsigned get(const Block& block, unsigned i) { return block.word[i]; }
  __device__ static void put(Block& block, unsigned i, unsigned bits) { block.word[i] = bits; }
};
template <>
struct Stored<8> {
  __device__ static u64 get(const Block& block, unsigned i) {
    return block.word[2 * i] | (static_cast<u64>(block.word[2 * i + 1]) << 32);
  }
  __device__ static void put(Block& block, unsigned i, u64 bits) {
    block.word[2 * i] = static_cast<unsigned>(bits);
    block.word[2 * i + 1] = static_cast<unsigned>(bits >> 32);
  }
};

// ---- folds --------------------------------------------------------------------------------------

// The unit of a thread's computation: a block, or a single element.
template <class Element>
struct Blocks {
  using Loaded = Block;
  static constexpr unsigned kLanes = 16 / Element::kBytes;
  using Memory = Stored<Element::kBytes>;
  __device__ static typename Element::Bits get(const Loaded& from, unsigned i) {
    return Memory::get(from, i);
  }
  __device__ static void put(Loaded& to, unsigned i, typename Element::Bits bits) {
    Memory::put(to, i, bits);
  }
};
template <class Element>
struct Single {
  using Loaded = typename Alone<Element::kBytes>::Type;
  static constexpr unsigned kLanes = 1;
  __device__ static typename Element::Bits get(const Loaded& from, unsigned) { return from; }
  __device__ static void put(Loaded& to, unsigned, typename Element::Bits bits) {
    to = static_cast<Loaded>(bits);
  }
};

template <class Element, class Op, class Unit>
struct Fold {
  using Loaded = typename Unit::Loaded;
  typename Element::Wide wide[Unit::kLanes];

  __device__ void first(const Loaded& from) {
    GRADRED_UNROLL
    for (unsigned i = 0; i < Unit::kLanes; ++i) wide[i] = Element::widen(Unit::get(from, i));
  }
  __device__ void next(const Loaded& from) {
    GRADRED_UNROLL
    for (unsigned i = 0; i < Unit::kLanes; ++i) {
      wide[i] = Op::apply(wide[i], Element::widen(Unit::get(from, i)));
    }
  }
  __device__ void scale(double factor, bool divide) {
    GRADRED_UNROLL
    for (unsigned i = 0; i < Unit::kLanes; ++i) wide[i] = Element::apply(wide[i], factor, divide);
  }
  __device__ Loaded result() const {
    Loaded to{};
    GRADRED_UNROLL
    for (unsigned i = 0; i < Unit::kLanes; ++i) Unit::put(to, i, Element::narrow(wide[i]));
    return to;
  }
};

// Loads as many inputs as there are registers for before folding, so that the loads are in flight
// together.
template <class Element, class Op, class Unit, unsigned inputs, bool scales>
__device__ inline void fold_at(const Arguments& call, u64 begin, u64 at) {
  using Loaded = typename Unit::Loaded;
  constexpr unsigned kTogether = inputs != 0 ? inputs : 4;
  const auto load = [&](unsigned input) {
    const char* const from = static_cast<const char*>(call.inputs[input]);
    return reinterpret_cast<const Loaded*>(from + begin)[at];
  };
  Loaded loaded[kTogether];
  Fold<Element, Op, Unit> fold;
  unsigned done = 1;
  if (inputs != 0) {
    GRADRED_UNROLL
    for (unsigned i = 0; i < kTogether; ++i) loaded[i] = load(i);
    fold.first(loaded[0]);
    GRADRED_UNROLL
    for (unsigned i = 1; i < kTogether; ++i) fold.next(loaded[i]);
  } else {
    fold.first(load(0));
    for (; done + kTogether <= call.k; done += kTogether) {
      GRADRED_UNROLL
      for (unsigned i = 0; i < kTogether; ++i) loaded[i] = load(done + i);
      GRADRED_UNROLL
      for (unsigned i = 0; i < kTogether; ++i) fold.next(loaded[i]);
    }
    for (; done < call.k; ++done) fold.next(load(done));
  }
  if (scales) fold.scale(call.factor, call.divide != 0);
  const Loaded result = fold.result();
  for (unsigned i = 0; i < call.written; ++i) {
    reinterpret_cast<Loaded*>(static_cast<char*>(call.targets[i]) + begin)[at] = result;
  }
}

// If all vectors have the same alignment, uses blocks, and single elements before and behind them;
// else only single elements.
template <class Element, class Op, unsigned inputs, bool scales>
__device__ inline void reduce(const Arguments& call) {
  constexpr unsigned kLanes = Blocks<Element>::kLanes;
  const u64 self = blockIdx.x * static_cast<u64>(blockDim.x) + threadIdx.x;
  const u64 threads = gridDim.x * static_cast<u64>(blockDim.x);
  const u64 target = reinterpret_cast<u64>(call.targets[0]);
  u64 apart = 0;
  for (unsigned i = 1; i < call.written; ++i) {
    apart |= reinterpret_cast<u64>(call.targets[i]) ^ target;
  }
  for (unsigned i = 0; i < (inputs != 0 ? inputs : call.k); ++i) {
    apart |= reinterpret_cast<u64>(call.inputs[i]) ^ target;
  }
  u64 head = (16 - target % 16) % 16 / Element::kBytes;
  if (apart % 16 != 0 || head > call.count) head = call.count;
  const u64 blocks = (call.count - head) / kLanes;
  for (u64 i = self; i < blocks; i += threads) {
    fold_at<Element, Op, Blocks<Element>, inputs, scales>(call, head * Element::kBytes, i);
  }
  const u64 rest = call.count - blocks * kLanes;
  for (u64 i = self; i < rest; i += threads) {
    const u64 at = i < head ? i : i + blocks * kLanes;
    fold_at<Element, Op, Single<Element>, inputs, scales>(call, 0, at);
  }
}

}  // namespace gradred_kernels

// GRADRED_NO_ENTRIES: the including source has its own entry points.
#ifndef GRADRED_NO_ENTRIES

// ---- entry points: gradred_<element>_<operation>_<inputs>; 0 inputs: any number -----------------
//
// The second launch bound, a minimum of resident blocks, leaves 80 registers and more to a thread.
// With the compiler's own choice some kernels spill.

#define GRADRED_ENTRY(element, operation, Op, inputs, scales, blocks)                             \
  extern "C" __global__ void __launch_bounds__(256, blocks)                                       \
      gradred_##element##_##operation##_##inputs(                                                 \
          const __grid_constant__ gradred_kernels::Arguments call) {                              \
    gradred_kernels::reduce<gradred_kernels::element, gradred_kernels::Op, inputs, scales>(call); \
  }
#define GRADRED_ENTRIES_OF(element, operation, Op, scales, blocks) \
  GRADRED_ENTRY(element, operation, Op, 0, scales, blocks)         \
  GRADRED_ENTRY(element, operation, Op, 2, scales, blocks)         \
  GRADRED_ENTRY(element, operation, Op, 4, scales, blocks)         \
  GRADRED_ENTRY(element, operation, Op, 8, scales, blocks)
#define GRADRED_ENTRIES(element)                    \
  GRADRED_ENTRIES_OF(element, sum, Sum, false, 3)   \
  GRADRED_ENTRIES_OF(element, prod, Prod, false, 3) \
  GRADRED_ENTRIES_OF(element, min, Min, false, 3)   \
  GRADRED_ENTRIES_OF(element, max, Max, false, 3)   \
  GRADRED_ENTRIES_OF(element, scaled_sum, Sum, true, 2)
// Function calls leave too few registers for eight inputs at once.
#define GRADRED_USER_ENTRIES(element)                                       \
  GRADRED_ENTRY(element, user, User<gradred_kernels::element>, 0, false, 2) \
  GRADRED_ENTRY(element, user, User<gradred_kernels::element>, 2, false, 2) \
  GRADRED_ENTRY(element, user, User<gradred_kernels::element>, 4, false, 2)

#if defined GRADRED_ELEMENT && defined GRADRED_USER_OP
GRADRED_USER_ENTRIES(GRADRED_ELEMENT)
#elif defined GRADRED_ELEMENT
GRADRED_ENTRIES(GRADRED_ELEMENT)
#else
GRADRED_FOR_ELEMENTS(GRADRED_ENTRIES)
#ifdef GRADRED_USER_OP
GRADRED_FOR_ELEMENTS(GRADRED_USER_ENTRIES)
#endif
#endif
#endif  // GRADRED_NO_ENTRIES
#endif  // GRADRED_REDUCE_CU
