// Long allreduces, allgathers and broadcasts for which each rank reads what it needs out of its
// peers' memory: one copy in place of two through shared memory, by the kernel, or where they lie
// if that is in files of arrays (peer_arrays.h).
//
// Through shared memory every byte goes from one core's cache to another's. Where the cores are far
// from each other that is what takes the time, and memory is nearer. Where they share a cache it is
// the other way round, but for what is only moved. So it is with results, which peers find either
// in this core's cache or in memory. Nobody tells where the cores are, and the kernel moves ranks
// between them: so one rank measures all ways and says with each operation which one it is
// (long_ways.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "node/peer_arrays.h"
#include "node/read_offer.h"
#include "node/steps.h"
#include "node/way.h"

namespace gradred {

class SingleCopy final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  // Whether it comes into question for such a call.
  bool serves(const NodeCall& call) const;
  // Before this rank announces: what peers have to know to read its memory.
  void offer(const NodeCall& call, ReadOffer& offer);
  // All have announced: whether all can read all. What each rank finds follows from what all of
  // them have said; the first time they try, and the next operation knows.
  bool all_can_read();
  // If so. `past`: results are written past the caches.
  Steps steps(const NodeCall& call, bool past);

  // No operation follows: a dead peer's memory is there as long as it is mapped here.
  void forget_peers() noexcept { peer_arrays_.clear(); }
  std::uint64_t operations() const { return operations_; }  // so far
  // How many peers' inputs this rank has read in them without the kernel.
  std::uint64_t mapped_reads() const { return mapped_reads_; }

 private:
  struct Reading {
    bool past;          // the caches: results
    std::size_t piece;  // bytes that are reduced at a time
  };

  ReadOffer offer_of(std::size_t rank) const { return ReadOffer::of(announcement(rank)); }
  static void offer_places(std::size_t bytes, bool swaps, ReadOffer& offer);
  void try_peers();
  const std::byte* view_of(std::size_t peer, FilePlace place, const std::byte* address,
                           std::size_t bytes);
  void read_peer(std::size_t peer, std::byte* target, const std::byte* source, std::size_t bytes);
  void read_input(std::size_t peer, std::byte* target, std::size_t begin, std::size_t bytes);
  Steps gather(NodeCall call);
  Steps fetch(NodeCall call);
  Steps swap(NodeCall call);
  Steps reduce(NodeCall call, bool past);
  Reading begin_reading(const NodeCall& call, bool past);
  void reduce_part(const NodeCall& call, const Reading& reading, std::size_t first,
                   std::size_t count);
  void fetch_part(const NodeCall& call, const Reading& reading, std::size_t peer, std::size_t first,
                  std::size_t count);

  std::uint64_t beacon_ = 0;  // read by peers, to try
  bool tried_peers_ = false;  // whether they can be read
  bool can_read_peers_ = false;
  ReadOffer readable_{};  // the last one of memory that the kernel can read, so far
  std::size_t readable_bytes_ = 0;
  std::vector<PeerArrays> peer_arrays_;             // by rank; empty: none has been asked for
  std::vector<const std::byte*> inputs_, outputs_;  // of peers, where they are mapped; by rank
  std::uint64_t operations_ = 0;
  std::uint64_t mapped_reads_ = 0;
};

}  // namespace gradred
