// The operations on vectors of one type, and which type has which operations. Each is symmetric bit
// for bit, except for NaN results, which `narrow` makes canonical.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "reduce/kernels/elements.h"
#include "reduce/kernels/kernel_table.h"
#include "reduce/kernels/vectors.h"

namespace gradred::GRADRED_ISA {
namespace {

template <class V>
using Mask = decltype(V{} < V{});  // signed integers of the same width: 0 or -1
template <class V>
using Lane = std::remove_cvref_t<decltype(V{}[0])>;

struct Sum {
  template <class V>
  static V apply(V a, V b) {
    return a + b;
  }
};

struct Prod {
  template <class V>
  static V apply(V a, V b) {
    if constexpr (sizeof(Lane<V>) == 1) {  // no instruction set multiplies bytes
      using Pairs = Vector<std::uint16_t>;
      const Pairs x = as<Pairs>(a);
      const Pairs y = as<Pairs>(b);
      return as<V>(((x * y) & 0x00ff) | ((x >> 8) * (y & 0xff00)));
    } else {
      return a * b;
    }
  }
};

struct Quotient {
  template <class V>
  static V apply(V a, V b) {
    return a / b;
  }
};

struct Min {
  template <class V>
  static V apply(V a, V b) {
    return a < b ? a : b;
  }
};

struct Max {
  template <class V>
  static V apply(V a, V b) {
    return a > b ? a : b;
  }
};

// For equal numbers and for NaN both comparisons are false, so `one` is b and `two` is a; else both
// are the minimum. The OR of their bits is the negative one of two zeros, and a NaN if one of them
// is NaN.
struct RealMin {
  template <class V>
  static V apply(V a, V b) {
    const V one = a < b ? a : b;
    const V two = b < a ? b : a;
    return as<V>(as<Mask<V>>(one) | as<Mask<V>>(two));
  }
};

struct RealMax {
  template <class V>
  static V apply(V a, V b) {
    const V one = a > b ? a : b;
    const V two = b > a ? b : a;
    const V either = as<V>(as<Mask<V>>(one) | as<Mask<V>>(two));
    const V both = as<V>(as<Mask<V>>(one) & as<Mask<V>>(two));
    return either == either ? both : either;
  }
};

struct LogicalAnd {
  template <class V>
  static V apply(V a, V b) {
    return as<V>((a != 0) & (b != 0) & 1);
  }
};

struct LogicalOr {
  template <class V>
  static V apply(V a, V b) {
    return as<V>(((a | b) != 0) & 1);
  }
};

struct LogicalXor {
  template <class V>
  static V apply(V a, V b) {
    return as<V>(((a != 0) ^ (b != 0)) & 1);
  }
};

struct BitAnd {
  template <class V>
  static V apply(V a, V b) {
    return a & b;
  }
};

struct BitOr {
  template <class V>
  static V apply(V a, V b) {
    return a | b;
  }
};

struct BitXor {
  template <class V>
  static V apply(V a, V b) {
    return a ^ b;
  }
};

// Real and imaginary parts alternate. Re = ar br + -(ai bi) and Im = ai br + ar bi, so swapping a
// and b only swaps factors and summands.
struct ComplexProd {
  template <class V>
  static V apply(V a, V b) {
    return apply(a, b, std::make_index_sequence<sizeof(V) / sizeof(a[0])>());
  }

 private:
  template <class V, std::size_t... i>
  static V apply(V a, V b, std::index_sequence<i...>) {
    const V swapped = {a[i ^ 1]...};
    const V real = {b[i & ~std::size_t{1}]...};
    const V imaginary = {b[i | 1]...};
    const V sign = {(i & 1 ? Lane<V>{0} : -Lane<V>{0})...};
    const V cross = swapped * imaginary;
    return a * real + as<V>(as<Mask<V>>(cross) ^ as<Mask<V>>(sign));
  }
};

// The loops of kernels.cc: F on elements that are represented as E (elements.h), of `size`
// bytes each.
template <class E, class F, std::size_t size>
constexpr ReduceFunctions functions();
template <class E, std::size_t size>
void scale(void* data, std::size_t count, double factor, bool divide);

// The function of each operation on a type; {nullptr, nullptr} if the type lacks the operation.
constexpr bool adds(Op op) { return op == Op::kSum || op == Op::kAvg || op == Op::kPremul; }

template <class T>
using Unsigned = Integers<std::make_unsigned_t<T>>;  // wraps

template <class T>
struct Operations;

template <std::integral T>
struct Operations<T> {
  static constexpr Kernels::Scale scale = nullptr;

  template <Op op>
  static constexpr ReduceFunctions get() {
    constexpr std::size_t size = sizeof(T);
    using Words = Integers<std::uint64_t>;
    if constexpr (adds(op)) return functions<Unsigned<T>, Sum, size>();
    if constexpr (op == Op::kProd) return functions<Unsigned<T>, Prod, size>();
    if constexpr (op == Op::kMin) return functions<Integers<T>, Min, size>();
    if constexpr (op == Op::kMax) return functions<Integers<T>, Max, size>();
    if constexpr (op == Op::kLand) return functions<Unsigned<T>, LogicalAnd, size>();
    if constexpr (op == Op::kLor) return functions<Unsigned<T>, LogicalOr, size>();
    if constexpr (op == Op::kLxor) return functions<Unsigned<T>, LogicalXor, size>();
    if constexpr (op == Op::kBand) return functions<Words, BitAnd, size>();
    if constexpr (op == Op::kBor) return functions<Words, BitOr, size>();
    if constexpr (op == Op::kBxor) return functions<Words, BitXor, size>();
  }
};

// Every byte but 0 is true.
template <>
struct Operations<bool> {
  static constexpr Kernels::Scale scale = nullptr;

  template <Op op>
  static constexpr ReduceFunctions get() {
    using Bytes = Operations<std::uint8_t>;
    if constexpr (op == Op::kLand || op == Op::kBand || op == Op::kMin) {
      return Bytes::get<Op::kLand>();
    } else if constexpr (op == Op::kLor || op == Op::kBor || op == Op::kMax) {
      return Bytes::get<Op::kLor>();
    } else if constexpr (op == Op::kLxor || op == Op::kBxor) {
      return Bytes::get<Op::kLxor>();
    }
    return {};
  }
};

template <NarrowFloat Format>
struct Operations<Format> {
  static constexpr std::size_t size = sizeof(typename Format::Lane);
  static constexpr Kernels::Scale scale = &GRADRED_ISA::scale<Narrow<Format>, size>;

  template <Op op>
  static constexpr ReduceFunctions get() {
    if constexpr (adds(op)) return functions<Narrow<Format>, Sum, size>();
    if constexpr (op == Op::kProd) return functions<Narrow<Format>, Prod, size>();
    if constexpr (op == Op::kMin) return functions<Ordered<Format, true>, Min, size>();
    if constexpr (op == Op::kMax) return functions<Ordered<Format, false>, Max, size>();
    return {};
  }
};

template <std::floating_point T>
struct Operations<T> {
  static constexpr Kernels::Scale scale = &GRADRED_ISA::scale<Reals<T>, sizeof(T)>;

  template <Op op>
  static constexpr ReduceFunctions get() {
    if constexpr (adds(op)) return functions<Reals<T>, Sum, sizeof(T)>();
    if constexpr (op == Op::kProd) return functions<Reals<T>, Prod, sizeof(T)>();
    if constexpr (op == Op::kMin) return functions<Reals<T>, RealMin, sizeof(T)>();
    if constexpr (op == Op::kMax) return functions<Reals<T>, RealMax, sizeof(T)>();
    return {};
  }
};

template <class T>
struct Operations<std::complex<T>> {
  static constexpr std::size_t size = 2 * sizeof(T);
  static constexpr Kernels::Scale scale = &GRADRED_ISA::scale<Reals<T>, size>;

  template <Op op>
  static constexpr ReduceFunctions get() {
    if constexpr (adds(op)) return functions<Reals<T>, Sum, size>();
    if constexpr (op == Op::kProd) return functions<Reals<T>, ComplexProd, size>();
    return {};
  }
};

}  // namespace
}  // namespace gradred::GRADRED_ISA
