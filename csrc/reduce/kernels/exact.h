// Parts of sums without a rounding error, of kExactBlock float64s (Rump, Ogita and Oishi, "Accurate
// floating-point summation part I", 2008).
#pragma once

#include "reduce/kernels/reduce_functions.h"
#include "reduce/kernels/vectors.h"

namespace gradred::GRADRED_ISA {
namespace {

using Doubles = Vector<double>;
using Bits = Vector<std::int64_t>;

constexpr std::size_t kAtOnce = 4;  // vectors: enough to hide the latency of additions

Doubles doubles_at(const double* values, std::size_t vector) {
  return as<Doubles>(load(reinterpret_cast<const char*>(values + vector * kLanes<double>)));
}

// The largest magnitude, NaN passed over or not.
double largest(const double* values) {
  Doubles most[kAtOnce] = {};
  for (std::size_t i = 0; i < kExactBlock / kLanes<double>; i += kAtOnce) {
    for (std::size_t j = 0; j < kAtOnce; ++j) {
      const Doubles x = as<Doubles>(as<Bits>(doubles_at(values, i + j)) & splat(kMagnitude));
      most[j] = most[j] > x ? most[j] : x;
    }
  }
  double found = 0;
  for (const Doubles& one : most) {
    for (std::size_t lane = 0; lane < kLanes<double>; ++lane) {
      if (!(one[lane] <= found)) found = one[lane];
    }
  }
  return found;
}

// Splits each value x into q, its bits down to 2^-53 sigma, and a rest. sigma is a power of two and
// at least 2 * kExactBlock times the largest magnitude, so that the q add up without an error.
// `rest` may be `values`. Returns whether there is a rest that is not zero.
bool extract(double* rest, const double* values, double sigma, double* sum) {
  Doubles sums[kAtOnce] = {};
  Bits bits[kAtOnce] = {};
  const Doubles large = splat(sigma);
  for (std::size_t i = 0; i < kExactBlock / kLanes<double>; i += kAtOnce) {
    for (std::size_t j = 0; j < kAtOnce; ++j) {
      const Doubles x = doubles_at(values, i + j), q = (large + x) - large, left = x - q;
      sums[j] += q;
      bits[j] |= as<Bits>(left);
      store(reinterpret_cast<char*>(rest + (i + j) * kLanes<double>), as<Raw>(left));
    }
  }
  double total = 0;
  std::int64_t any = 0;
  for (std::size_t j = 0; j < kAtOnce; ++j) {
    for (std::size_t lane = 0; lane < kLanes<double>; ++lane) {
      total += sums[j][lane];
      any |= bits[j][lane];
    }
  }
  *sum = total;
  return (any & kMagnitude) != 0;
}

}  // namespace
}  // namespace gradred::GRADRED_ISA
