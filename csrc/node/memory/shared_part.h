// A node group's part of shared memory (layout.h), as one of its ranks sees it, and how much of it
// is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "node/memory/layout.h"
#include "node/memory/pool.h"

namespace gradred {

namespace testing {
struct NoMoreMemory;  // lets a test behave as if memory had run out
}  // namespace testing

class SharedPart {
 public:
  // Rounds the options to sizes with which a group can work.
  static NodeOptions rounded(NodeOptions options, std::size_t ranks);
  // How much of a part the first operation needs.
  static PoolPart::Real at_first(const NodeOptions& options, std::size_t ranks);
  // On rank 0: allocates `wanted` of a part and prepares it, as if the operation before the first
  // one had just ended. Another group may have used the part before. The rings lie on the
  // memory nodes of their ranks, as the part knows them. Throws TransportError if there is too
  // little memory.
  static void prepare(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                      PoolPart::Real wanted);

  // Requires that rank 0 has prepared the part. `begin`: of the lines.
  SharedPart(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank, std::size_t ranks);

  const std::shared_ptr<Pool>& pool() const { return pool_; }
  Header& header() const { return header_; }
  RankState& state(std::size_t rank) const { return states_[rank]; }
  // Before shrink_state(): allocates the ShrinkStates. Any rank may do so. Throws TransportError.
  void allow_shrinking() const;
  ShrinkState& shrink_state(std::size_t rank) const { return shrinks_[rank]; }
  // The one that begins at this offset among those of the operation.
  Gathered& gathered(std::size_t begin, std::uint64_t operation) const {
    return *reinterpret_cast<Gathered*>(gathered_ + (operation & 1) * gathered_bytes_ + begin);
  }
  std::byte* short_slot(std::size_t rank, std::uint64_t operation) const {
    return short_slots_ + (2 * rank + (operation & 1)) * kShortSlot;
  }
  std::byte* ring(std::size_t rank, std::uint64_t operation) const {
    return rings_ + (2 * rank + (operation & 1)) * options_.ring_bytes;
  }
  std::byte* slot(std::size_t rank, std::uint64_t operation) const {
    return ring(rank, operation) + (placed_.operation == operation ? placed_.begin : 0);
  }
  std::byte* chunk(std::size_t rank, std::uint64_t operation, std::size_t index) const {
    if (placed_.operation != operation) {
      return ring(rank, operation) + index % options_.depth * options_.chunk_bytes;
    }
    return ring(rank, operation) + (placed_.begin + index * placed_.apart) % placed_.end;
  }
  // Lays an operation's slot, or its chunks of `bytes` bytes, where the rings were last written
  // long ago. All ranks call it with the same arguments, or none does.
  //
  // If each operation began at the start of a ring, its lines would lie in the caches of the ranks
  // that read them two operations ago, from which a write has to fetch each of them back. Meanwhile
  // these ranks have read so much else that the lines are in the cache that all share: 64 KiB to
  // 256 KiB take about half the time. Few lines arrive sooner from a peer's first-level cache.
  void place(std::uint64_t operation, std::size_t bytes, std::size_t chunks = 1) {
    if (!whole_ || bytes * chunks < options_.placed_bytes) return;
    const std::size_t apart = (bytes + kApart - 1) / kApart * kApart;
    const std::size_t places = options_.ring_bytes / apart;
    const std::size_t first = (operation / 2 * chunks) % places;
    placed_ = {
        .operation = operation, .begin = first * apart, .apart = apart, .end = places * apart};
  }

  const NodeOptions& options() const { return options_; }
  // options(), or smaller sizes as long as not all of the rings is allocated.
  const NodeOptions& usable() const { return usable_; }
  const NodeOptions& usable_at_first() const { return first_; }  // when the group was created

  // Larger slots and chunks are used from one operation on, which rank 0 announces together with
  // that operation. No rank uses a larger slot for that operation: all ranks choose the data path
  // by the sizes known before it. They cut chunks by the size known once all have announced.
  bool is_whole() const { return whole_; }
  // On rank 0: allocates what an operation of `bytes` bytes by chunks needs. Throws TransportError
  // if there is too little memory for any chunks.
  void grow(std::uint64_t operation, std::size_t bytes);
  void use_more_if_said(std::uint64_t until) {
    if (!whole_) [[unlikely]] {
      look_for_more(until);
    }
  }

 private:
  friend struct testing::NoMoreMemory;

  static void populate(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                       PoolPart::Real wanted);
  void make_whole(std::uint64_t operation) noexcept;
  void look_for_more(std::uint64_t until);

  const std::shared_ptr<Pool> pool_;
  std::byte* const lines_;
  PoolPart* const part_;  // on rank 0: the entry in the pool
  const std::size_t ranks_;
  Header& header_;
  const NodeOptions options_;
  NodeOptions usable_, first_;
  bool whole_ = false;  // usable_ equals options_
  bool tried_ = false;  // on rank 0: it has tried to allocate the rest
  std::byte* const rooms_;
  RankState* const states_;
  std::byte* const gathered_;
  const std::size_t gathered_bytes_;
  std::byte* const short_slots_;
  ShrinkState* const shrinks_;
  std::byte* const rings_;
  struct {
    std::uint64_t operation = ~std::uint64_t{0};
    std::size_t begin, apart, end;  // bytes of a ring
  } placed_;
};

}  // namespace gradred
