// The loops, once; compiled for each instruction set with GRADRED_ISA naming its namespace. They
// count bytes, so types that share an operation's bits share its code: signed and unsigned sums, a
// complex sum and the sum of its parts, bitwise operations of every width.
#include "reduce/kernels/kernels.h"

#include <complex>
#include <concepts>
#include <tuple>
#include <type_traits>

#include "reduce/float_mode.h"
#include "reduce/kernels/elements.h"
#include "reduce/kernels/operations.h"

namespace gradred::GRADRED_ISA {
namespace {

template <class E, class F>
Raw combine(Raw a, Raw b) {
  return E::narrow(E::template combine<F>(E::widen(a), E::widen(b)));
}

template <class E, class F>
[[gnu::noinline]] void pair_bytes(char* target, const char* a, const char* b, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) {
    store(target + i, combine<E, F>(load(a + i), load(b + i)));
  }
  if (const std::size_t rest = bytes - i; rest > 0) {
    store_part(target + i, combine<E, F>(load_part(a + i, rest), load_part(b + i, rest)), rest);
  }
}

// Folds `vectors` vectors at `offset` of every input in registers: each input is read once, and
// before the target, which may be one of them, is written.
template <class E, class F, std::size_t vectors>
void fold(char* target, const void* const* inputs, std::size_t k, std::size_t offset) {
  typename E::Wide sums[vectors];
  const char* input = static_cast<const char*>(inputs[0]) + offset;
  for (std::size_t v = 0; v < vectors; ++v) sums[v] = E::widen(load(input + v * kVectorBytes));
  for (std::size_t j = 1; j < k; ++j) {
    input = static_cast<const char*>(inputs[j]) + offset;
    for (std::size_t v = 0; v < vectors; ++v) {
      sums[v] = E::template combine<F>(sums[v], E::widen(load(input + v * kVectorBytes)));
    }
  }
  for (std::size_t v = 0; v < vectors; ++v) {
    store(target + offset + v * kVectorBytes, E::narrow(sums[v]));
  }
}

template <class E, class F>
void fold_part(char* target, const void* const* inputs, std::size_t k, std::size_t offset,
               std::size_t bytes) {
  const auto part = [&](std::size_t j) {
    return E::widen(load_part(static_cast<const char*>(inputs[j]) + offset, bytes));
  };
  typename E::Wide sum = part(0);
  for (std::size_t j = 1; j < k; ++j) sum = E::template combine<F>(sum, part(j));
  store_part(target + offset, E::narrow(sum), bytes);
}

template <class E, class F>
[[gnu::noinline]] void many_bytes(char* target, const void* const* inputs, std::size_t k,
                                  std::size_t bytes) {
  constexpr std::size_t kVectors = 4;  // at once: hides the latency of additions, spares registers
  std::size_t i = 0;
  for (; i + kVectors * kVectorBytes <= bytes; i += kVectors * kVectorBytes) {
    fold<E, F, kVectors>(target, inputs, k, i);
  }
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) fold<E, F, 1>(target, inputs, k, i);
  if (i < bytes) fold_part<E, F>(target, inputs, k, i, bytes - i);
}

struct NoMode {};  // of integers

template <class E>
concept FloatingPoint = requires { requires std::floating_point<typename E::Scalar>; };
template <class E>
using Mode = std::conditional_t<FloatingPoint<E>, UsualFloatMode, NoMode>;

template <class E, class F, std::size_t size>
void pair(void* target, const void* a, const void* b, std::size_t count) {
  [[maybe_unused]] const Mode<E> mode{};
  pair_bytes<E, F>(static_cast<char*>(target), static_cast<const char*>(a),
                   static_cast<const char*>(b), count * size);
}

template <class E, class F, std::size_t size>
void many(void* target, const void* const* inputs, std::size_t k, std::size_t count) {
  if (k == 1) {
    __builtin_memmove(target, inputs[0], count * size);
  } else if (k == 2) {
    pair<E, F, size>(target, inputs[0], inputs[1], count);
  } else {
    [[maybe_unused]] const Mode<E> mode{};
    many_bytes<E, F>(static_cast<char*>(target), inputs, k, count * size);
  }
}

template <class E, class F>
[[gnu::noinline]] void scale_bytes(char* data, std::size_t bytes, typename E::Scalar factor) {
  const typename E::Wide factors = E::all(factor);
  const auto scaled = [&](Raw raw) {
    return E::narrow(E::template combine<F>(E::widen(raw), factors));
  };
  std::size_t i = 0;
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) store(data + i, scaled(load(data + i)));
  if (const std::size_t rest = bytes - i; rest > 0) {
    store_part(data + i, scaled(load_part(data + i, rest)), rest);
  }
}

template <class E, std::size_t size>
void scale(void* data, std::size_t count, double factor, bool divide) {
  const auto scalar = static_cast<typename E::Scalar>(factor);
  if (divide) {
    scale_bytes<E, Quotient>(static_cast<char*>(data), count * size, scalar);
  } else {
    scale_bytes<E, Prod>(static_cast<char*>(data), count * size, scalar);
  }
}

// The C++ type that stands for each DType, in its order.
using Types = std::tuple<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t,
                         std::uint16_t, std::uint32_t, std::uint64_t, bool, Float16, BFloat16,
                         float, double, std::complex<float>, std::complex<double>>;
static_assert(std::tuple_size_v<Types> == kDTypes);

constexpr bool adds(Op op) { return op == Op::kSum || op == Op::kAvg || op == Op::kPremul; }

template <class T>
using Unsigned = Integers<std::make_unsigned_t<T>>;  // wraps

template <class E, class F, std::size_t size>
constexpr ReduceFunctions functions() {
  return {&pair<E, F, size>, &many<E, F, size>};
}

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

template <class Format>
struct HalfOperations {
  static constexpr Kernels::Scale scale = &GRADRED_ISA::scale<Halves<Format>, 2>;

  template <Op op>
  static constexpr ReduceFunctions get() {
    if constexpr (adds(op)) return functions<Halves<Format>, Sum, 2>();
    if constexpr (op == Op::kProd) return functions<Halves<Format>, Prod, 2>();
    if constexpr (op == Op::kMin) return functions<OrderedHalves<Format, true>, Min, 2>();
    if constexpr (op == Op::kMax) return functions<OrderedHalves<Format, false>, Max, 2>();
    return {};
  }
};

template <>
struct Operations<Float16> : HalfOperations<Float16> {};
template <>
struct Operations<BFloat16> : HalfOperations<BFloat16> {};

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

template <Op op, class... T>
constexpr Kernels::Row row(std::tuple<T...>*) {
  return {{Operations<T>::template get<op>()...}};
}

template <class... T, std::size_t... op>
constexpr Kernels table(std::tuple<T...>* types, std::index_sequence<op...>) {
  return {{row<static_cast<Op>(op)>(types)...}, {Operations<T>::scale...}};
}

}  // namespace

constinit const Kernels kKernels =
    table(static_cast<Types*>(nullptr), std::make_index_sequence<kOps>());

}  // namespace gradred::GRADRED_ISA
