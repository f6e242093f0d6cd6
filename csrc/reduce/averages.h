// Exact means of integers, also where their sum leaves the range of the type. Each integer becomes
// one or two words, and the sums of words over all ranks stay in the range of a word. So ranks
// reduce the words by any plan, as a sum, and then divide.
#pragma once

#include <cstddef>

#include "base/types.h"

namespace gradred {

struct Words {
  DType dtype;       // of one word
  std::size_t each;  // words of one integer
};

// The 32-bit words of 8-bit integers serve 2^23 ranks, and all others any number. A 64-bit integer
// is 2^32 times its first word, and its second one.
constexpr Words words_of(DType integer) {
  return {size_of(integer) == 1 ? DType::kInt32 : DType::kInt64,
          size_of(integer) == 8 ? std::size_t{2} : std::size_t{1}};
}

// Writes the words of `count` integers.
void to_words(void* words, const void* integers, std::size_t count, DType dtype);
// Writes the quotients of sums of words and `divisor`, which is positive, truncated toward zero. A
// quotient outside the range of the type wraps; a mean is never there.
void from_words(void* integers, const void* words, std::size_t count, DType dtype, int divisor);

}  // namespace gradred
