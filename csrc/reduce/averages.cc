#include "reduce/averages.h"

#include <limits>

#include "reduce/integers.h"

namespace gradred {
namespace {

constexpr std::int64_t kSecondWord = std::int64_t{1} << 32;

template <class T>
using Word = std::conditional_t<sizeof(T) == 1, std::int32_t, std::int64_t>;

template <class T>
void split(void* words, const void* integers, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = load_at<T>(integers, i);
    if constexpr (sizeof(T) == 8) {
      store_at(words, 2 * i, static_cast<std::int64_t>(x >> 32));
      store_at(words, 2 * i + 1, static_cast<std::int64_t>(x & (kSecondWord - 1)));
    } else {
      store_at(words, i, static_cast<Word<T>>(x));
    }
  }
}

template <class T>
T quotient(const void* words, std::size_t i, int divisor) {
  if constexpr (sizeof(T) == 8) {
    const Int128 sum = static_cast<Int128>(load_at<std::int64_t>(words, 2 * i)) * kSecondWord +
                       load_at<std::int64_t>(words, 2 * i + 1);
    const auto low = static_cast<std::int64_t>(sum);
    // Most sums fit 64 bits, whose division takes a fraction of the time.
    return sum == low ? static_cast<T>(low / divisor) : static_cast<T>(sum / divisor);
  } else {
    return static_cast<T>(load_at<Word<T>>(words, i) / divisor);
  }
}

template <class T>
void divide(void* integers, const void* words, std::size_t count, int divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    store_at(integers, i, quotient<T>(words, i, divisor));
  }
}

}  // namespace

void to_words(void* words, const void* integers, std::size_t count, DType dtype) {
  with_integer(dtype, [&](auto type) { split<decltype(type)>(words, integers, count); });
}

void from_words(void* integers, const void* words, std::size_t count, DType dtype, int divisor) {
  with_integer(dtype, [&](auto type) { divide<decltype(type)>(integers, words, count, divisor); });
}

}  // namespace gradred
