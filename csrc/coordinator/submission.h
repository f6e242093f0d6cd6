// What one rank asks for under a name, as all ranks compare it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/rank_names.h"
#include "base/types.h"

namespace gradred {

enum class NamedKind : std::uint8_t {
  kAllreduce,
  kAllgather,  // along the first axis, whose lengths may differ
  kBroadcast,
  kAlltoall,       // of rows; how many for whom may differ
  kReduceScatter,  // of rows: the first ranks get one more where they do not divide evenly
  kBarrier,
  kRefusal,  // this rank has refused its arguments: whatever the others have submitted is an error
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
  std::uint8_t in_chunks = 0;   // 1: if it is large; said by who decides what comes next
  std::uint8_t on_device = 0;   // 1: the arrays are in a device's memory, here as on all ranks
  std::int32_t root = 0;
  std::int32_t priority = 0;  // what is agreed on has the highest that a rank gave
  double prescale = 1.0, postscale = 1.0;
  std::array<std::int64_t, kMostAxes> shape{};
  // Of the first array: its axes from the slowest in memory to the fastest; all 0: as they stand.
  std::array<std::uint8_t, kMostAxes> order{};
  std::uint64_t rest = 0;    // hash of the other arrays, and of further axes
  std::uint64_t arrays = 0;  // of the group
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, kMostParts> counts{};

  bool operator==(const Submission&) const = default;

  // Large allreduces are carried out chunk by chunk once something has been more urgent than they
  // are: it may come again, and go between two of them. Each chunk is a moment at which ranks wait
  // for each other, so where there are no priorities there are no chunks.
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{8} << 20;  // more or less
  std::uint32_t chunks() const;
  // Elements of all arrays, as if they lay behind each other.
  struct Range {
    std::uint64_t begin, end;
  };
  Range chunk(std::uint32_t index) const;
  std::uint64_t bytes_of(std::uint32_t chunk) const;
};

// Which of the operations that all ranks have submitted is the next one: the most urgent, of
// several the oldest.
struct Turn {
  std::int32_t priority = 0;
  std::uint64_t age = 0;  // counts up

  bool operator<(const Turn& other) const {
    return priority != other.priority ? priority < other.priority : age > other.age;
  }
};

// What operations of one batch have in common.
struct BatchKey {
  double prescale = 1.0, postscale = 1.0;
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  std::uint8_t on_device = 0;
  bool joins = false;  // it can be of one at all

  static BatchKey of(const Submission& submission);
  bool suits(const BatchKey& before) const { return joins && *this == before; }
  bool operator==(const BatchKey&) const = default;
};

// Which entries of a log that come one after the other go together.
class Batching {
 public:
  explicit Batching(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  // Whether the next entry joins the one before. `well`: it does not end with an error.
  bool add(const Submission& next, bool well);

 private:
  const std::uint64_t most_bytes_;
  BatchKey before_;          // of one that may be joined
  std::uint64_t bytes_ = 0;  // of the batch
};

// Whether they are the same but for what the ranks' own may differ in. Quick; some that are not may
// go together all the same.
bool alike(const Submission& one, const Submission& other);
// "allreduce of float32 [2, 3] with sum"
std::string describe(const RankNames& names, const Submission& one);
// What differs, in words; empty: the ranks may carry it out together.
std::string difference(const RankNames& names, const Submission& one, std::string_view whose,
                       const Submission& other, std::string_view whose_other);
// Why ranks that have joined, and have no array of their own, cannot take part; empty: they can.
std::string why_not_joined(const Submission& submission);

}  // namespace gradred
