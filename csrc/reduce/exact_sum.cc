#include "reduce/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "reduce/kernels/float_mode.h"
#include "reduce/kernels/kernel_table.h"

namespace gradred {
namespace {

// The limbs that elements of a type reach, how many binary digits it has, and the place of the
// lowest one: 0 is 2^-1074.
struct Range {
  std::size_t first, limbs, digits, lowest;
};

Range range_of(DType dtype) {
  if (dtype == DType::kFloat64) return {0, 68, 53, 0};
  check(dtype == DType::kFloat32, "an exact sum of a type other than float32 and float64");
  return {28, 13, 24, 1074 - 149};
}

constexpr std::size_t kCounts = 5;  // words after the limbs
constexpr std::size_t kAddsUntilCarry = std::size_t{1} << 30;

// Brings all limbs but the last into 0 to 2^32 - 1.
void carry(std::span<std::int64_t> limbs) {
  std::int64_t over = 0;
  for (std::int64_t& limb : limbs.first(limbs.size() - 1)) {
    limb += over;
    over = limb >> 32;
    limb &= 0xFFFF'FFFF;
  }
  limbs.back() += over;
}

// The value of the limbs, which are not negative, rounded to the type.
double nearest(std::span<const std::int64_t> limbs, const Range& range) {
  const auto digit = [&](std::size_t place) {
    return static_cast<std::uint64_t>(limbs[place / 32]) >> place % 32 & 1;
  };
  std::size_t places = limbs.size() * 32;
  while (places > 0 && digit(places - 1) == 0) --places;
  const std::size_t base = range.first * 32, lowest = range.lowest - base;
  const std::size_t from = std::max(lowest, places - std::min(places, range.digits));
  std::uint64_t digits = 0;
  for (std::size_t place = places; place > from; --place) digits = digits << 1 | digit(place - 1);
  const bool below_half = from == lowest || digit(from - 1) == 0;
  bool above_half = false;
  for (std::size_t place = 0; !below_half && place + 1 < from; ++place) {
    above_half = above_half || digit(place) != 0;
  }
  if (!below_half && (above_half || (digits & 1) != 0)) ++digits;
  const double found =
      std::ldexp(static_cast<double>(digits), static_cast<int>(base + from) - 1074);
  return range.digits == 24 ? static_cast<double>(static_cast<float>(found)) : found;
}

}  // namespace

ExactSum::ExactSum(DType dtype, std::string_view isa)
    : dtype_(dtype), functions_(find_kernels(isa)->exact), until_carry_(kAddsUntilCarry) {}

void ExactSum::add(const void* data, std::size_t count) {
  const UsualFloatMode mode;
  alignas(64) std::array<double, kExactBlock> block;
  const auto* const doubles = static_cast<const double*>(data);
  const auto* const floats = static_cast<const float*>(data);
  for (std::size_t done = 0; done < count; done += kExactBlock) {
    const std::size_t part = std::min(kExactBlock, count - done);
    if (dtype_ == DType::kFloat64 && part == kExactBlock) {
      add_block(doubles + done, part);
      continue;
    }
    dtype_ == DType::kFloat64 ? std::copy_n(doubles + done, part, block.begin())
                              : std::copy_n(floats + done, part, block.begin());
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(part), block.end(), 0.0);
    add_block(block.data(), part);
  }
}

void ExactSum::add_block(const double* values, std::size_t count) {
  constexpr int kRoom = std::bit_width(kExactBlock);  // sigma is 2^kRoom times a power above all
  constexpr int kMostPasses = 6;
  const auto one_by_one = [&] { std::for_each_n(values, count, [&](double x) { add_one(x); }); };
  double largest = functions_.largest(values);  // of all but NaN
  if (!(largest < 0x1p1000)) return one_by_one();
  const auto is_more_than_zero = [](double x) { return x != 0 || std::signbit(x); };
  if (largest == 0 && std::any_of(values, values + count, is_more_than_zero)) return one_by_one();
  alignas(64) std::array<double, kExactBlock> rest;
  const double* from = values;
  others_ += static_cast<std::int64_t>(count);
  for (int pass = 0; largest > 0; ++pass) {
    if (pass == kMostPasses) {
      std::for_each(rest.begin(), rest.end(), [&](double x) { add_finite(x); });
      return;
    }
    int exponent = 0;
    std::frexp(largest, &exponent);
    const double sigma = std::ldexp(1.0, exponent + kRoom);
    double sum = 0;
    const bool more = functions_.extract(rest.data(), from, sigma, &sum);
    if (!std::isfinite(sum)) {  // only in the first pass: a NaN among the values
      others_ -= static_cast<std::int64_t>(count);
      return one_by_one();
    }
    add_finite(sum);
    if (!more) return;
    from = rest.data();
    largest = std::ldexp(sigma, -53);
  }
}

void ExactSum::add_one(double x) {
  if (std::isnan(x)) {
    ++nans_;
  } else if (std::isinf(x)) {
    ++(x > 0 ? infinities_ : negative_infinities_);
  } else {
    ++(x == 0 && std::signbit(x) ? negative_zeros_ : others_);
    add_finite(x);
  }
}

void ExactSum::add_finite(double x) {
  if (x == 0) return;
  if (--until_carry_ == 0) {
    carry(limbs_);
    until_carry_ = kAddsUntilCarry;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t exponent = bits >> 52 & 0x7FF, fraction = bits & 0xF'FFFF'FFFF'FFFF;
  const std::uint64_t digits = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52;
  const std::size_t place = std::max<std::uint64_t>(exponent, 1) - 1;
  const std::size_t limb = place / 32, shift = place % 32;
  const std::uint64_t low = digits << shift, high = shift == 0 ? 0 : digits >> (64 - shift);
  const std::int64_t sign = (bits >> 63) != 0 ? -1 : 1;
  limbs_[limb] += sign * static_cast<std::int64_t>(low & 0xFFFF'FFFF);
  limbs_[limb + 1] += sign * static_cast<std::int64_t>(low >> 32);
  limbs_[limb + 2] += sign * static_cast<std::int64_t>(high);
}

std::vector<std::int64_t> ExactSum::words() {
  const Range range = range_of(dtype_);
  carry(limbs_);
  std::vector<std::int64_t> found(
      limbs_.begin() + static_cast<std::ptrdiff_t>(range.first),
      limbs_.begin() + static_cast<std::ptrdiff_t>(range.first + range.limbs));
  // Above the type's limbs a negative sum has ones alone.
  if (range.first + range.limbs < kLimbs && limbs_.back() < 0)
    found.back() -= std::int64_t{1} << 32;
  found.insert(found.end(), {nans_, infinities_, negative_infinities_, negative_zeros_, others_});
  return found;
}

double ExactSum::rounded(std::span<const std::int64_t> words, DType dtype) {
  const Range range = range_of(dtype);
  check(words.size() == range.limbs + kCounts, "an exact sum of another type");
  const UsualFloatMode mode;
  const std::span counts = words.last(kCounts);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (counts[0] != 0 || (counts[1] != 0 && counts[2] != 0)) return std::nan("");
  if (counts[1] != 0 || counts[2] != 0) return counts[1] != 0 ? kInfinity : -kInfinity;
  std::vector<std::int64_t> limbs(words.begin(), words.end() - kCounts);
  carry(limbs);
  const bool negative = limbs.back() < 0;
  if (negative) {
    for (std::int64_t& limb : limbs) limb = -limb;
    carry(limbs);
  }
  const bool negative_zeros_alone = counts[3] != 0 && counts[4] == 0;
  const double found = nearest(limbs, range);
  return negative || negative_zeros_alone ? -found : found;
}

}  // namespace gradred
