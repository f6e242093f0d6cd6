// The plans whose data pass through shared memory chunk by chunk, with several chunks in flight.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "node/paths/kind_way.h"
#include "node/paths/steps.h"
#include "node/paths/way.h"

namespace gradred {

class Chunks final : public NodeWay {
 public:
  using NodeWay::NodeWay;

  // Requires that all ranks have announced the operation and that PeerStores has begun.
  Steps steps(const NodeCall& call);
  // The same for an allreduce of ranks in cache groups, if serves_in_groups(), whose answer is the
  // same on all ranks. The chunks must be allocated as a whole.
  bool serves_in_groups(const NodeCall& call) const;
  Steps reduce_in_groups(NodeCall call);
  std::uint64_t operations_in_groups() const { return in_groups_; }  // number of them so far

 private:
  // A run of bytes, cut into pieces of equal length. The last piece may be shorter.
  struct Pieces {
    std::size_t bytes, piece;

    std::size_t count() const { return (bytes + piece - 1) / piece; }
    std::size_t begin(std::size_t index) const { return index * piece; }
    std::size_t length(std::size_t index) const {  // 0 past the end
      return std::min(piece, bytes - std::min(bytes, begin(index)));
    }
    std::size_t end(std::size_t index) const { return std::min(bytes, begin(index + 1)); }
  };

  // The room of a rank's chunks, cut into more of them.
  struct SmallChunks {
    std::size_t depth, bytes;
  };

  template <class Export, class Use>
  Steps pipeline(Pieces pieces, Flow* flow, Export export_chunk, Use use_chunk);
  bool reduces_everything(const NodeCall& call) const;
  Steps reduce(const NodeCall& call);
  Steps exchange(NodeCall call);
  Steps scatter(const NodeCall& call);
  Steps gather(const NodeCall& call);
  Steps swap(const NodeCall& call);
  Steps fetch(NodeCall call);
  void combine_shared(const NodeCall& call, std::byte* result, std::size_t count);
  void give(const NodeCall& call, std::byte* target, const std::byte* source, std::size_t bytes);
  void take(const NodeCall& call, std::byte* target, const std::byte* source, std::size_t bytes);
  std::size_t group_size() const;
  std::byte* small_chunk(std::size_t rank, std::size_t index, const SmallChunks& small) const;
  void reduce_twice(const NodeCall& call, std::byte* shared, std::byte* result, std::size_t count);
  bool streams(const NodeCall& call) const {
    return options().streams(call.bytes(), call.send == kInPlace);
  }

  std::vector<std::byte> scratch_;  // pieces of results, one for each thread; empty until needed
  std::uint64_t in_groups_ = 0;
  KindWays own_ways_{group_, stores_};
};

}  // namespace gradred
