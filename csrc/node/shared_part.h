// A node group's part of shared memory (layout.h), as one of its ranks sees it, and how much of it
// is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "node/layout.h"
#include "node/pool.h"

namespace gradred {

namespace testing {
struct NoMoreMemory;  // lets a test go on as where memory has run out
}  // namespace testing

class SharedPart {
 public:
  // Sizes that a group can work with, whatever was asked for.
  static NodeOptions rounded(NodeOptions options, std::size_t ranks);
  // Of rank 0: makes so much of a part memory and prepares it, as if the operation before the first
  // had just ended. It may have been another group's. Throws TransportError: too little memory.
  static void prepare(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                      PoolPart::Real wanted);

  // Of a part that has been prepared.
  SharedPart(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank, std::size_t ranks);

  const std::shared_ptr<Pool>& pool() const { return pool_; }
  Header& header() const { return header_; }
  RankState& state(std::size_t rank) const { return states_[rank]; }
  ShrinkState& shrink_state(std::size_t rank) const { return shrinks_[rank]; }
  std::byte* slot(std::size_t rank, std::uint64_t operation) const {
    return slots_ + (2 * rank + (operation & 1)) * options_.slot_bytes;
  }
  std::byte* chunk(std::size_t rank, std::size_t index) const {
    return chunks_ + (rank * options_.depth + index % options_.depth) * options_.chunk_bytes;
  }

  const NodeOptions& options() const { return options_; }
  // The same, or only what is memory so far of slots and chunks.
  const NodeOptions& usable() const { return usable_; }
  const NodeOptions& usable_at_first() const { return first_; }  // when the group was made

  // Slots and chunks are used whole from one operation on. Rank 0 says so with its announcement of
  // that operation, for which no rank has yet taken the path of a larger slot: all ranks choose the
  // path by what was said before, and cut chunks by what is said when all have announced.
  bool is_whole() const { return whole_; }
  void make_whole(std::uint64_t operation) noexcept;
  void use_whole_if_said(std::uint64_t until) {
    if (!whole_) [[unlikely]] {
      look_whether_whole(until);
    }
  }

 private:
  friend struct testing::NoMoreMemory;

  static void populate(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                       PoolPart::Real wanted);
  void look_whether_whole(std::uint64_t until);

  const std::shared_ptr<Pool> pool_;
  std::byte* const memory_;
  PoolPart* const part_;  // of rank 0: the same
  const std::size_t ranks_;
  Header& header_;
  const NodeOptions options_;
  NodeOptions usable_, first_;
  bool whole_ = false;  // all of options_ is usable
  bool tried_ = false;  // rank 0: to get the rest
  RankState* const states_;
  ShrinkState* const shrinks_;
  std::byte* const slots_;
  std::byte* const chunks_;
};

}  // namespace gradred
