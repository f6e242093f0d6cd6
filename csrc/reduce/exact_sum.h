// Sums of floats without any rounding error, so that neither their order nor how they are split
// among ranks matters; and the nearest float to such a sum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "reduce/kernels/reduce_functions.h"

namespace gradred {

// A sum of up to 2^62 float32s or float64s. It is a fixed-point number with a place for each bit
// that a float64 may have (Kulisch). Elements are added in blocks, by extraction of their upper
// bits; where their exponents differ widely, one by one.
class ExactSum {
 public:
  // `isa`: of find_kernels(), for tests.
  explicit ExactSum(DType dtype, std::string_view isa = {});

  void add(const void* data, std::size_t count);
  // The sum as integers. Those of several sums, of up to 2^30 ranks, are added up one by one.
  std::vector<std::int64_t> words();
  // The nearest number of the type, ties to even, with infinities, NaN and the sign of zero as
  // IEEE 754 has them.
  static double rounded(std::span<const std::int64_t> words, DType dtype);

 private:
  static constexpr std::size_t kLimbs = 68;  // of 32 bits, from 2^-1074 to 2^1024 times 2^62

  void add_block(const double* values, std::size_t count);
  void add_one(double x);
  void add_finite(double x);

  const DType dtype_;
  const ExactFunctions& functions_;
  std::array<std::int64_t, kLimbs> limbs_{};
  std::size_t until_carry_;
  // How many elements were NaN, infinities of either sign, negative zeros, and others.
  std::int64_t nans_ = 0, infinities_ = 0, negative_infinities_ = 0;
  std::int64_t negative_zeros_ = 0, others_ = 0;
};

}  // namespace gradred
