// Asks the processor for its instruction sets once, and looks functions up in the tables of the
// best one.
#include "reduce/reduce.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "reduce/integers.h"
#include "reduce/kernels/float_mode.h"
#include "reduce/kernels/kernel_table.h"

namespace gradred {
namespace {

struct InstructionSet {
  std::string_view name;
  const Kernels* kernels;
  bool (*available)();
};

#if defined(__x86_64__)

bool has_f16c() {  // older compilers have no name for this feature
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#endif

bool always() { return true; }

// The best comes first.
constexpr InstructionSet kInstructionSets[] = {
#if defined(__x86_64__)
    {"avx512", &avx512::kKernels, has_avx512},
    {"avx2", &avx2::kKernels, has_avx2},
#elif defined(__aarch64__)
    {"neon", &neon::kKernels, always},
#endif
    {"generic", &generic::kKernels, always},
};

const InstructionSet* find_best() {
  const InstructionSet* set = kInstructionSets;
  while (!set->available()) ++set;
  return set;
}

const InstructionSet& best() {
  static const InstructionSet* const chosen = find_best();
  return *chosen;
}

const ReduceFunctions* look_up(const Kernels& kernels, Op op, DType dtype) {
  const ReduceFunctions& found =
      kernels.reduce[static_cast<std::size_t>(op)].of[static_cast<std::size_t>(dtype)];
  return found.pair == nullptr ? nullptr : &found;
}

std::atomic<const ReduceFunctions*>& user_entry(Op op, DType dtype) {
  static std::array<std::array<std::atomic<const ReduceFunctions*>, kDTypes>, kMostUserOps> table{};
  return table.at(static_cast<std::size_t>(op) - kFirstUserOp)[static_cast<std::size_t>(dtype)];
}

// Truncates toward zero. A value outside T's range becomes the nearest end of the range; NaN
// becomes 0.
template <class T>
T truncated(double x) {
  constexpr auto kMin = static_cast<double>(std::numeric_limits<T>::min());
  // A power of two, hence exact, even if T's maximum is not a double.
  constexpr double kEnd = 2.0 * static_cast<double>(std::numeric_limits<T>::max() / 2 + 1);
  if (!(x > kMin)) return x <= kMin ? std::numeric_limits<T>::min() : T{0};
  return x < kEnd ? static_cast<T>(x) : std::numeric_limits<T>::max();
}

template <class T>
T limited(Int128 x) {
  constexpr T kMin = std::numeric_limits<T>::min(), kMax = std::numeric_limits<T>::max();
  return x < kMin ? kMin : x > kMax ? kMax : static_cast<T>(x);
}

template <class T>
void scale_integers(void* data, std::size_t count, double factor) {
  constexpr double kEnd = 0x1p63;  // of the factors whose products fit 128 bits
  const bool is_whole = std::abs(factor) < kEnd && std::trunc(factor) == factor;
  const Int128 whole = is_whole ? static_cast<std::int64_t>(factor) : 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = load_at<T>(data, i);
    store_at(data, i,
             is_whole ? limited<T>(x * whole) : truncated<T>(static_cast<double>(x) * factor));
  }
}

}  // namespace

void add_reduction(Op op, DType dtype, const ReduceFunctions& functions) {
  check(is_users(op), "a function for an operation that has one");
  std::atomic<const ReduceFunctions*>& entry = user_entry(op, dtype);
  const ReduceFunctions* expected = nullptr;
  const auto* const made =
      new ReduceFunctions{functions.pair, functions.many, true};  // never freed
  if (!entry.compare_exchange_strong(expected, made, std::memory_order_acq_rel)) delete made;
}

const ReduceFunctions* find_reduction(Op op, DType dtype) {
  if (is_users(op)) return user_entry(op, dtype).load(std::memory_order_acquire);
  return look_up(*best().kernels, op, dtype);
}

const ReduceFunctions* find_reduction(Op op, DType dtype, std::string_view isa) {
  const Kernels* const kernels = find_kernels(isa);
  return kernels == nullptr ? nullptr : look_up(*kernels, op, dtype);
}

const Kernels* find_kernels(std::string_view isa) {
  for (const InstructionSet& set : kInstructionSets) {
    if ((isa.empty() || set.name == isa) && set.available()) return set.kernels;
  }
  return nullptr;
}

std::string_view best_isa() { return best().name; }

std::vector<std::string_view> isas() {
  std::vector<std::string_view> names;
  for (const InstructionSet& set : kInstructionSets) {
    if (set.available()) names.push_back(set.name);
  }
  return names;
}

void scale(void* data, std::size_t count, DType dtype, double factor, bool divide) {
  const UsualFloatMode mode;
  if (is_integer(dtype)) {
    check(!divide, "scale() divides no integers: averages.h does");
    with_integer(dtype, [&](auto type) { scale_integers<decltype(type)>(data, count, factor); });
    return;
  }
  const Kernels::Scale function = best().kernels->scale[static_cast<std::size_t>(dtype)];
  check(function != nullptr, "scale() of a type without arithmetic");
  function(data, count, factor, divide);
}

// Reduces the inputs part by part, so that sums stay in the first-level cache.
void fold(const ReduceFunctions& functions, std::size_t element, void* target,
          std::span<const void* const> inputs, std::size_t count) {
  const std::size_t last = inputs.size() - 1;
  if (last < 2) return functions.many(target, inputs.data(), inputs.size(), count);
  alignas(64) std::array<std::byte, 4096> sum;
  const std::size_t most = sum.size() / element;
  for (std::size_t done = 0; done < count; done += most) {
    const std::size_t part = std::min(most, count - done), at = done * element;
    const auto input = [&](std::size_t i) { return static_cast<const std::byte*>(inputs[i]) + at; };
    functions.pair(sum.data(), input(0), input(1), part);
    for (std::size_t i = 2; i < last; ++i) functions.pair(sum.data(), sum.data(), input(i), part);
    functions.pair(static_cast<std::byte*>(target) + at, sum.data(), input(last), part);
  }
}

}  // namespace gradred
