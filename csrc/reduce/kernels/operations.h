// The operations on vectors of one type. Each is symmetric bit for bit, up to the NaN that `narrow`
// mends.
#pragma once

#include <type_traits>
#include <utility>

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

// Both comparisons are false for equal numbers and for NaN, then `one` is b and `two` is a, else
// they are the same: the union of their bits is the negative one of two zeros, and a NaN if one of
// them is.
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

// Real and imaginary parts alternate. Re = ar br + -(ai bi) and Im = ai br + ar bi: swapping a and
// b swaps factors and summands only.
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

}  // namespace
}  // namespace gradred::GRADRED_ISA
