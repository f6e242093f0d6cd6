// Long calls in which each rank reads what it needs directly from its peers' memory. This takes one
// copy instead of two through shared memory. The kernel copies the bytes, or the rank reads them
// where they lie if they are in array files (peer_arrays.h).
//
// Through shared memory, every byte moves from one core's cache to another's. Between distant cores
// this transfer dominates the time, and reading from memory is faster. Between cores that share a
// cache, chunks are faster, except for data that are only moved. The same holds for results, which
// peers find either in the writer's cache or in memory. Nothing reports where the cores are, and
// the kernel moves ranks between them. So one rank measures all plans and selects one for each
// operation (long_ways.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/kinds.h"
#include "node/agreement/read_offer.h"
#include "node/memory/huge_pages.h"
#include "node/memory/peer_arrays.h"
#include "node/paths/steps.h"
#include "node/paths/way.h"

namespace gradred {

class SingleCopy final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  // Whether such a call may be carried out by reading peers' memory.
  bool serves(const NodeCall& call) const;
  // Called before this rank announces: fills in what peers need to read its memory.
  void offer(const NodeCall& call, ReadOffer& offer);
  // Called after all have announced. Returns whether all ranks can read all ranks; the answer is
  // the same everywhere, since it depends only on the announcements. The first call tries to read
  // the peers, and the next operation announces the result.
  bool all_can_read();
  // Requires all_can_read(). `past`: results are written past the caches.
  Steps steps(const NodeCall& call, bool past);

  // Called when no operation follows. A mapping would keep the memory of an ended process
  // allocated.
  void forget_peers() noexcept { peer_arrays_.clear(); }
  std::uint64_t operations() const { return operations_; }  // number of them so far
  // How many inputs this rank has read in peers' mapped files, without the kernel.
  std::uint64_t mapped_reads() const { return mapped_reads_; }

 private:
  struct Reading {
    bool past;            // results are written past the caches
    std::size_t threads;  // that share the work
    std::size_t piece;    // bytes that each of them reduces at a time
  };

  struct Piece {
    std::size_t begin, bytes;  // of a vector
  };

  ReadOffer offer_of(std::size_t rank) const { return ReadOffer::of(announcement(rank)); }
  bool keeps_input(const NodeCall& call) const;
  bool can_be_read(std::span<const std::byte> array);
  void offer_places(std::size_t bytes, bool with_result, ReadOffer& offer);
  void try_peers();
  const std::byte* view_of(std::size_t peer, FilePlace place, const std::byte* address,
                           std::size_t bytes);
  void read_peer(std::size_t peer, std::byte* target, const std::byte* source, std::size_t bytes);
  void read_input(std::size_t peer, std::byte* target, std::size_t begin, std::size_t bytes);
  Steps gather(NodeCall call);
  Steps fetch(NodeCall call);
  Steps swap(NodeCall call);
  Steps collect(NodeCall call);
  Steps fold_those_before(NodeCall call);
  Steps reduce(NodeCall call, bool past);
  Reading begin_reading(const NodeCall& call, bool past, RankRange ranks);
  void find_operands(const NodeCall& call, const Reading& reading, RankRange ranks, Piece piece,
                     std::byte* scratch, const void** operands);
  void fold_inputs(const NodeCall& call, const Reading& reading, RankRange ranks);
  void reduce_part(const NodeCall& call, const Reading& reading, std::size_t first,
                   std::size_t count);
  void reduce_slice(const NodeCall& call, const Reading& reading, Slice elements,
                    std::byte* scratch, const void** operands);
  void fetch_part(const NodeCall& call, const Reading& reading, std::size_t peer, std::size_t first,
                  std::size_t count);
  void fetch_slice(const NodeCall& call, const Reading& reading, std::size_t peer, Piece piece,
                   std::byte* scratch);

  std::uint64_t beacon_ = 0;  // a number that peers read as a test
  bool tried_peers_ = false;  // whether the test has been done
  bool can_read_peers_ = false;
  std::array<std::span<const std::byte>, 4>
      readable_;  // the last arrays that the kernel could read
  HugePages huge_pages_;
  std::vector<PeerArrays> peer_arrays_;             // by rank; empty until it is needed
  std::vector<const std::byte*> inputs_, outputs_;  // by rank: where peers' arrays are mapped
  std::uint64_t operations_ = 0;
  std::uint64_t mapped_reads_ = 0;
};

}  // namespace gradred
