// The loops, compiled once for each instruction set with GRADRED_ISA as its namespace. They count
// bytes, so types whose operation has the same bits share its code: signed and unsigned sums, a
// complex sum and the sum of its parts, and bitwise operations of every width.
#include <concepts>
#include <type_traits>

#include "reduce/kernels/exact.h"
#include "reduce/kernels/float_mode.h"
#include "reduce/kernels/kernel_table.h"
#include "reduce/kernels/operations.h"
#include "reduce/kernels/wire_blocks.h"

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

// Folds `vectors` vectors at `offset` of every input in registers. Each input is read once, and
// before the target, which may be one of the inputs, is written.
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
  // Vectors at once: enough to hide the latency of additions, few enough for the registers.
  constexpr std::size_t kVectors = 4;
  std::size_t i = 0;
  for (; i + kVectors * kVectorBytes <= bytes; i += kVectors * kVectorBytes) {
    fold<E, F, kVectors>(target, inputs, k, i);
  }
  for (; i + kVectorBytes <= bytes; i += kVectorBytes) fold<E, F, 1>(target, inputs, k, i);
  if (i < bytes) fold_part<E, F>(target, inputs, k, i, bytes - i);
}

struct NoMode {};  // for integers

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

template <class E, class F, std::size_t size>
constexpr ReduceFunctions functions() {
  return {&pair<E, F, size>, &many<E, F, size>};
}

template <Op op, class... T>
constexpr Kernels::Row row(std::tuple<T...>*) {
  return {{Operations<T>::template get<op>()...}};
}

template <class... T, std::size_t... op>
constexpr Kernels table(std::tuple<T...>* types, std::index_sequence<op...>) {
  return {{row<static_cast<Op>(op)>(types)...},
          {Operations<T>::scale...},
          {&largest, &extract},
          {halves<BFloat16Wire>(), halves<Float16Wire>(), scaled<Int8Wire>(), scaled<Float8Wire>(),
           scaled<Int4Wire>()}};
}

}  // namespace

constinit const Kernels kKernels =
    table(static_cast<Types*>(nullptr), std::make_index_sequence<kOps>());

}  // namespace gradred::GRADRED_ISA
