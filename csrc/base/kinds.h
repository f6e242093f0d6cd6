// The kinds of collective calls. One row says what each rank gives and gets, and whose inputs are
// reduced. Whatever holds for several kinds of calls is derived from these rows: the names, what
// the ranks compare, the lengths of buffers, the MPI's functions, and what a schedule has to do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradred {

enum class Kind : std::uint8_t {
  kAllreduce,
  kReduceScatterBlock,
  kAllgather,
  kBcast,
  kAlltoall,  // only within a host, for named operations
  kScan,
  kExscan,  // an exclusive scan
  kGather,
  kScatter,
  // This rank refused its arguments. A signature's `detail` is a reason code; nothing else is
  // meaningful.
  kAborted,
  // A call that the MPI library carries out. A signature's count holds its kind.
  kLeftToMpi,
};

// The part of a vector that a rank gives or gets. If any rank gives or gets a block, the vector
// consists of one block for each rank, in the order of ranks, and a call's count is that of a
// block.
enum class Part : std::uint8_t {
  kVector,    // all of it
  kOwnBlock,  // rank r block r
  kRoots,     // the root all of it, the other ranks nothing
  kNotFirst,  // all of it, but rank 0 nothing
  kPieces,    // one piece from or for each rank, of any lengths
};

// The ranks whose inputs are reduced into a rank's result.
enum class Reduced : std::uint8_t { kNone, kAll, kUpToOwn, kBeforeOwn };

struct KindInfo {
  std::string_view name;
  std::string_view schedules{};  // what its schedules are called; empty: it has none
  Part input = Part::kVector;
  Part result = Part::kVector;
  Reduced reduced = Reduced::kNone;
};

inline constexpr std::array kKinds = std::to_array<KindInfo>({
    {"allreduce", "allreduce", Part::kVector, Part::kVector, Reduced::kAll},
    {"reduce_scatter_block", "reduce_scatter", Part::kVector, Part::kOwnBlock, Reduced::kAll},
    {"allgather", "allgather", Part::kOwnBlock, Part::kVector},
    {"bcast", "bcast", Part::kRoots, Part::kVector},
    {"alltoall", "", Part::kPieces, Part::kPieces},
    {"scan", "scan", Part::kVector, Part::kVector, Reduced::kUpToOwn},
    {"exscan", "exscan", Part::kVector, Part::kNotFirst, Reduced::kBeforeOwn},
    {"gather", "gather", Part::kOwnBlock, Part::kRoots},
    {"scatter", "scatter", Part::kRoots, Part::kOwnBlock},
    {"a call with refused arguments"},
    {"a call left to the MPI"},
});
// The number of kinds that a program can call; they come first.
inline constexpr std::size_t kCalledKinds = static_cast<std::size_t>(Kind::kAborted);

constexpr const KindInfo& info_of(Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }
constexpr std::string_view name_of(Kind kind) { return info_of(kind).name; }

// Whether the reduction operation is meaningful.
constexpr bool reduces(Kind kind) { return info_of(kind).reduced != Reduced::kNone; }
constexpr bool has_root(Kind kind) {
  return info_of(kind).input == Part::kRoots || info_of(kind).result == Part::kRoots;
}
// Whether the count is that of one rank's block.
constexpr bool has_blocks(Kind kind) {
  return info_of(kind).input == Part::kOwnBlock || info_of(kind).result == Part::kOwnBlock;
}
// Whether a vector can be cut anywhere, and each piece be a call of its own.
constexpr bool can_be_cut(Kind kind) {
  return !has_blocks(kind) && info_of(kind).input != Part::kPieces;
}
// Whether the result of each rank depends on all ranks, so that no rank can end such a call before
// all have come to it.
constexpr bool needs_all_ranks(Kind kind) {
  return !has_root(kind) && (!reduces(kind) || info_of(kind).reduced == Reduced::kAll);
}

// Whether the inputs that are reduced differ from rank to rank.
constexpr bool sums_differ(Kind kind) {
  return reduces(kind) && info_of(kind).reduced != Reduced::kAll;
}

// One rank's place in a call.
struct PlaceInCall {
  int rank = 0, size = 1;
  int root = 0;  // if the kind has one
};

// The elements, in units of the call's count, of the whole vector, of what a rank gives, and of
// what it gets.
constexpr std::size_t vector_counts(Kind kind, int size) {
  return has_blocks(kind) ? static_cast<std::size_t>(size) : 1;
}
constexpr std::size_t counts_of(Part part, Kind kind, const PlaceInCall& at) {
  if (part == Part::kOwnBlock) return 1;
  if (part == Part::kRoots && at.rank != at.root) return 0;
  if (part == Part::kNotFirst && at.rank == 0) return 0;
  return vector_counts(kind, at.size);
}
constexpr std::size_t given_counts(Kind kind, const PlaceInCall& at) {
  return counts_of(info_of(kind).input, kind, at);
}
constexpr std::size_t got_counts(Kind kind, const PlaceInCall& at) {
  return counts_of(info_of(kind).result, kind, at);
}

// The ranks from `first` to `end` - 1 whose inputs are reduced into the result of a rank.
struct RankRange {
  int first = 0, end = 0;

  constexpr int count() const { return end - first; }
  constexpr bool has(int rank) const { return first <= rank && rank < end; }
};
constexpr RankRange reduced_ranks(Kind kind, int rank, int size) {
  switch (info_of(kind).reduced) {
    case Reduced::kNone:
      return {};
    case Reduced::kAll:
      return {0, size};
    case Reduced::kUpToOwn:
      return {0, rank + 1};
    case Reduced::kBeforeOwn:
      return {0, rank};
  }
  return {};
}

}  // namespace gradred
