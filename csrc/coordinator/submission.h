// What one rank asks for under a name, as all ranks compare it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/types.h"

namespace gradred {

enum class NamedKind : std::uint8_t {
  kAllreduce,
  kAllgather,  // along the first axis, whose lengths may differ
  kBroadcast,
  kAlltoall,       // of rows; how many for whom may differ
  kReduceScatter,  // of rows: the first ranks get one more where they do not divide evenly
  kBarrier,
  kJoin,
};
std::string_view name_of(NamedKind kind);  // "allreduce"
// nullopt: there is none of this name.
std::optional<NamedKind> named_kind(std::string_view name);

// One array or, of a group, several. Lies in memory that processes share: no pointers.
struct Submission {
  static constexpr std::size_t kMostAxes = 8;
  // Of a group of more arrays, or of several types, a rank that has joined cannot know the parts.
  static constexpr std::size_t kMostParts = 16;

  NamedKind kind = NamedKind::kAllreduce;
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;  // of the first array
  std::uint8_t axes = 0;        // of the first array; more than kMostAxes count in `rest` alone
  std::uint8_t parts = 0;       // arrays whose counts are below; 0: see kMostParts
  std::int32_t root = 0;
  double prescale = 1.0, postscale = 1.0;
  std::array<std::int64_t, kMostAxes> shape{};
  std::uint64_t rest = 0;    // hash of the other arrays, and of further axes
  std::uint64_t arrays = 0;  // of the group
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, kMostParts> counts{};

  bool may_join_a_batch(const Submission& before) const {
    return kind == NamedKind::kAllreduce && before.kind == kind && op == before.op &&
           dtype == before.dtype && prescale == before.prescale && postscale == before.postscale &&
           parts != 0 && before.parts != 0;
  }
};

// What differs, in words; empty: the ranks may carry it out together.
std::string difference(const Submission& one, std::string_view whose, const Submission& other,
                       std::string_view whose_other);
// Why ranks that have joined, and have no array of their own, cannot take part; empty: they can.
std::string why_not_joined(const Submission& submission);

}  // namespace gradred
