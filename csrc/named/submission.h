// What one rank submits under a name, in the form in which the ranks compare it.
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
#include "base/wires.h"

namespace gradred {

enum class NamedKind : std::uint8_t {
  kAllreduce,
  kAllgather,  // along the first axis, whose lengths may differ
  kBroadcast,
  kAlltoall,       // of rows; each rank may send a different number to each peer
  kReduceScatter,  // of rows; the first ranks get one more if they do not divide evenly
  kBarrier,
  // This rank has refused its arguments; every other rank's submission of the name is an error.
  kRefusal,
  kJoin,
};
std::string_view name_of(NamedKind kind);  // "allreduce"
// Returns nullopt if there is no kind of this name.
std::optional<NamedKind> named_kind(std::string_view name);

// How the ranks carry an operation out.
enum class NamedForm : std::uint8_t {
  kPlain,     // whole; small ones form batches
  kInChunks,  // in chunks if it is large; chosen when all ranks have submitted it
  // Whole, and in no batch: another operation in flight on this rank uses its memory. It applies if
  // one rank submits it so.
  kAlone,
};

// The call that the program has made, if the operation is carried out as one of another kind: an
// index in a table of names.
enum class NamedCall : std::uint8_t { kOfKind };
// Returns nullopt if there is no call of this name. An empty name stands for kOfKind.
std::optional<NamedCall> named_call(std::string_view name);

// One array, or several that form a group. Lies in memory that processes share, so it has no
// pointers.
struct Submission {
  static constexpr std::size_t kMostAxes = 8;
  // A group of more arrays, or of arrays of several types, has no list of counts. A rank that has
  // joined cannot take part in its operation.
  static constexpr std::size_t kMostParts = 16;

  NamedKind kind = NamedKind::kAllreduce;
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;  // of the first array
  std::uint8_t axes = 0;        // of the first array; axes beyond kMostAxes are only part of `rest`
  std::uint8_t parts = 0;  // arrays whose counts are below; 0: there is no list, see kMostParts
  NamedForm form = NamedForm::kPlain;
  std::uint8_t on_device = 0;  // 1: the arrays are in a device's memory, on all ranks
  NamedCall call = NamedCall::kOfKind;
  Wire wire = Wire::kNone;  // of sums and means of float32; other arrays travel as they are
  std::int32_t root = 0;
  std::int32_t priority = 0;  // the operation gets the highest that a rank gave
  double prescale = 1.0, postscale = 1.0;
  std::array<std::int64_t, kMostAxes> shape{};
  // The first array's axes from the slowest to the fastest in memory; all 0: row-major.
  std::array<std::uint8_t, kMostAxes> order{};
  // Hash of the other arrays' types and shapes, and of axes beyond kMostAxes.
  std::uint64_t rest = 0;
  // Hash of the structure of the tree whose leaves the arrays are; 0: the program passed no tree.
  std::uint64_t structure = 0;
  std::uint64_t arrays = 0;  // in the group
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, kMostParts> counts{};

  bool operator==(const Submission&) const = default;

  // A large allreduce is carried out chunk by chunk if something more urgent has been submitted
  // before: that may come again, and then runs between two chunks. At each chunk the ranks wait for
  // each other, so without priorities there are no chunks.
  // Approximate size of a chunk.
  static constexpr std::uint64_t kChunkBytes = std::uint64_t{8} << 20;
  std::uint32_t chunks() const;
  // A range of elements of all arrays, counted as if they were concatenated.
  struct Range {
    std::uint64_t begin, end;
  };
  Range chunk(std::uint32_t index) const;
  std::uint64_t bytes_of(std::uint32_t chunk) const;
};

// The order of operations that all ranks have submitted: the most urgent comes first, the oldest
// among equally urgent ones.
struct Turn {
  std::int32_t priority = 0;
  std::uint64_t age = 0;  // increases with each operation

  bool operator<(const Turn& other) const {
    return priority != other.priority ? priority < other.priority : age > other.age;
  }
};

// What the operations of one batch have in common.
struct BatchKey {
  double prescale = 1.0, postscale = 1.0;
  Op op = Op::kSum;
  DType dtype = DType::kUInt8;
  std::uint8_t on_device = 0;
  Wire wire = Wire::kNone;
  bool joins = false;  // whether the operation may be part of a batch at all

  static BatchKey of(const Submission& submission);
  bool suits(const BatchKey& before) const { return joins && *this == before; }
  bool operator==(const BatchKey&) const = default;
};

// Decides which consecutive entries of a log form a batch.
class Batching {
 public:
  explicit Batching(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}
  // Returns whether the next entry joins the batch of the one before. `well`: it does not end with
  // an error.
  bool add(const Submission& next, bool well);

 private:
  const std::uint64_t most_bytes_;
  BatchKey before_;          // of the entry before, if it may be joined
  std::uint64_t bytes_ = 0;  // of the current batch
};

// Whether two submissions are equal apart from `priority` and `form`, in which ranks may
// differ. This is quicker than difference(), and stricter: some submissions that are not alike may
// still be carried out together.
bool alike(const Submission& one, const Submission& other);
std::string_view name_of_call(const Submission& one);  // "gather", or the name of the kind
// "allreduce of float32 [2, 3] with sum"
std::string describe(const RankNames& names, const Submission& one);
// Texts of a submission.
struct NamedTexts {
  // If this rank has refused its arguments: the reason, which all other ranks get.
  std::string why_refused{};
  std::string structure{};  // of the tree whose leaves the arrays are; Submission has its hash
};
// What a rank has submitted, for difference().
struct Submitted {
  const Submission& what;
  std::string whose;                // "rank 1"
  std::string_view structure = {};  // of the tree, as a text; empty if it is not known
};
// Describes what differs; empty if the ranks may carry the operation out together.
std::string difference(const RankNames& names, const Submitted& one, const Submitted& other);
// Why ranks that have joined, and have no array, cannot take part; empty if they can.
std::string why_not_joined(const Submission& submission);

}  // namespace gradred
