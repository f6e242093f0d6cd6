// Symbolic values: inputs, sums of two values, and what a value is once it was encoded. They are
// interned, so equal sums (up to a+b = b+a) are equal numbers.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/kinds.h"

namespace gradred {

using Value = std::uint32_t;
inline constexpr Value kNothing = UINT32_MAX;  // nothing has been written here

struct Place {
  int rank = -1, round = -1, step = -1;
};

struct Sum {
  Value a, b;            // b: kNothing if `a` was encoded
  std::uint32_t inputs;  // leaves of the tree; larger numbers count as kNothing
  Place formed;          // where it was formed first
};

class Values {
 public:
  Values(int ranks, std::uint32_t chunks);

  Value input(int rank, std::uint32_t chunk) const {
    return static_cast<Value>(rank) * chunks_ + chunk;
  }
  Value sum(Value a, Value b, Place formed);
  Value encoded(Value value, Place formed) { return sum(value, kNothing, formed); }

  bool is_input(Value value) const { return value < inputs_; }
  int rank_of(Value input) const { return static_cast<int>(input / chunks_); }
  const Sum& sum_of(Value value) const { return sums_[value - inputs_]; }
  std::uint32_t count(Value value) const {
    if (value == kNothing) return 0;
    return is_input(value) ? 1 : sum_of(value).inputs;
  }

  // Whether the value contains the input of each of these ranks exactly once, and no other.
  bool each_once(Value value, const RankRange& ranks) const;
  // How often the value contains each rank's input.
  std::vector<std::uint64_t> ranks(Value value) const;
  // The first sum inside `value` that contains an input twice; kNothing if there is none.
  Value doubled(Value value) const;
  // A hash of the tree alone; it does not depend on the order in which values were made.
  std::uint64_t hash(Value value) const;
  std::size_t sums() const { return sums_.size(); }

 private:
  int size_;
  std::uint32_t chunks_;
  Value inputs_;
  std::vector<Sum> sums_;
  std::vector<std::uint64_t> hashes_;  // of the sums
  std::unordered_map<std::uint64_t, Value> known_;
};

}  // namespace gradred
