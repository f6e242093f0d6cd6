#include "schedule/values.h"

#include <algorithm>
#include <utility>

#include "base/mixed.h"

namespace gradred {

Values::Values(int ranks, std::uint32_t chunks)
    : size_(ranks), chunks_(chunks), inputs_(static_cast<Value>(ranks) * chunks) {}

Value Values::sum(Value a, Value b, Place formed) {
  if (a > b) std::swap(a, b);
  const std::uint64_t key = std::uint64_t{a} << 32 | b;
  const auto [entry, added] = known_.try_emplace(key, inputs_ + static_cast<Value>(sums_.size()));
  if (added) {
    const std::uint64_t inputs = std::uint64_t{count(a)} + count(b);
    hashes_.push_back(mixed(mixed(hash(a) + hash(b)) + 1));  // + is symmetric, like the sum
    sums_.push_back(
        {a, b, static_cast<std::uint32_t>(std::min<std::uint64_t>(inputs, kNothing)), formed});
  }
  return entry->second;
}

bool Values::each_once(Value value, const RankRange& ranks) const {
  if (count(value) != static_cast<std::uint32_t>(ranks.count())) return false;
  std::vector<bool> seen(static_cast<std::size_t>(size_));
  std::vector<Value> parts = {value};
  while (!parts.empty()) {  // there are as many leaves as ranks, so this is short
    const Value part = parts.back();
    parts.pop_back();
    if (!is_input(part)) {
      parts.push_back(sum_of(part).a);
      if (sum_of(part).b != kNothing) parts.push_back(sum_of(part).b);
    } else if (!ranks.has(rank_of(part)) || seen[static_cast<std::size_t>(rank_of(part))]) {
      return false;
    } else {
      seen[static_cast<std::size_t>(rank_of(part))] = true;
    }
  }
  return true;
}

std::vector<std::uint64_t> Values::ranks(Value value) const {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(size_)), times(sums_.size());
  if (is_input(value)) {
    counts[static_cast<std::size_t>(rank_of(value))] = 1;
    return counts;
  }
  times[value - inputs_] = 1;
  for (Value sum = value; !is_input(sum); --sum) {  // a sum has a higher number than its parts
    for (const Value part : {sum_of(sum).a, sum_of(sum).b}) {
      if (part == kNothing) continue;
      auto& count =
          is_input(part) ? counts[static_cast<std::size_t>(rank_of(part))] : times[part - inputs_];
      count = std::min<std::uint64_t>(count + times[sum - inputs_], kNothing);
    }
  }
  return counts;
}

Value Values::doubled(Value value) const {
  const auto twice = [&](Value sum) {
    if (sum == kNothing || is_input(sum)) return false;
    const std::vector<std::uint64_t> counts = ranks(sum);
    return std::any_of(counts.begin(), counts.end(), [](std::uint64_t n) { return n > 1; });
  };
  if (!twice(value)) return kNothing;
  for (;;) {  // descends as long as a part contains an input twice
    const Sum& sum = sum_of(value);
    if (twice(sum.a)) {
      value = sum.a;
    } else if (twice(sum.b)) {
      value = sum.b;
    } else {
      return value;
    }
  }
}

std::uint64_t Values::hash(Value value) const {
  if (value == kNothing) return 0;
  return is_input(value) ? mixed(std::uint64_t{value} + 1) : hashes_[value - inputs_];
}

}  // namespace gradred
