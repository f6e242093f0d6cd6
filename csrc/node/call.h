// One operation of a node group on one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/flow.h"
#include "base/in_place.h"
#include "base/signature.h"
#include "reduce/reduce.h"

namespace gradred {

// By its size an operation's data travel in the announcements, in the slots, or chunk by chunk.
enum class DataPath : std::uint8_t { kInLine, kSlots, kChunks };

// An allreduce, reduce_scatter_block, allgather, bcast or alltoall.
//   reduce_scatter_block  send holds size * count elements, recv count of them; in place the first
//                         count of recv, which then holds size * count
//   allgather             send holds count elements, recv size * count; in place this rank's part
//                         of recv is the input
//   bcast                 recv holds count elements; send is not looked at
//   alltoall              send holds what this rank gives each rank, recv what it gets of each, one
//                         after the other, as long as `splits` says; not in place. `count`: the
//                         most that a rank gives
// With `parts` the blocks are parts of one vector of `count` elements, as long as they say, and of
// which some may be empty: each rank combines its own, or gives it to all, where it lies in recv.
//   reduce_scatter_block  send, or recv in place, holds the vector; of recv only the part is
//                         written
//   allgather             in place
struct NodeCall {
  Kind kind = Kind::kAllreduce;
  const void* send = kInPlace;  // or the input, which does not overlap recv
  void* recv = nullptr;
  std::size_t count = 0;
  std::size_t element = 0;  // bytes
  const ReduceFunctions* reduce = nullptr;
  int root = 0;
  Signature signature;
  // The first element of each rank's part, then count; null: equal blocks. Agreed, and alive as
  // long as the call.
  const std::size_t* parts = nullptr;
  // With parts: the vector's blocks of so many elements, where the parts' stand in recv.
  const std::uint32_t* order = nullptr;
  std::size_t block = 0;
  // Of an alltoall: elements from rank to rank, as `parts`.
  const std::size_t* splits = nullptr;
  // Rank 0 leads: it gets what all give, and what it then passes on is the result of the others. By
  // NodeExecution, where may_lead() what is given and what is passed on.
  //   allreduce  it gets the sums
  //   allgather  `parts` says where in recv each rank's `count` elements go, and `total` is passed
  //              on; in place
  //   bcast      it gets what the root gives, which may be no rank of these: -1
  bool led = false;
  std::size_t total = 0;  // elements; 0: count
  // Of an allreduce or broadcast by NodeExecution: this rank's input comes, and its result goes,
  // while it is under way. Null: the input is there.
  Flow* flow = nullptr;
  // Of flow: if all ranks have one, this is carried out in its place.
  DeviceCall* device = nullptr;

  std::size_t bytes() const { return count * element; }
  // Of rank's block or part of the vector that all blocks or parts make.
  std::size_t part_begin(std::size_t rank) const {
    return (parts != nullptr ? parts[rank] : rank * count) * element;
  }
  std::size_t part_bytes(std::size_t rank) const { return part_begin(rank + 1) - part_begin(rank); }
  std::size_t longest_part(std::size_t ranks) const;
  // What a rank gives to all peers together; of parts the longest, so that all choose one path.
  std::size_t input_bytes(std::size_t ranks) const;
  std::size_t given_bytes(std::size_t rank, std::size_t ranks) const;  // of input()
  const std::byte* input(std::size_t rank) const;
  // Of an alltoall: from rank to rank; of all that a rank gives, or gets, those before.
  std::size_t split_bytes(std::size_t from, std::size_t to, std::size_t ranks) const {
    return splits[from * ranks + to] * element;
  }
  std::size_t given_before(std::size_t from, std::size_t to, std::size_t ranks) const;
  std::size_t got_before(std::size_t to, std::size_t from, std::size_t ranks) const;
  std::size_t passed_on_bytes() const { return (total != 0 ? total : count) * element; }

  // Bytes of the vector that its parts make: use(where they lie in recv, how many were before them,
  // how many they are) for each run.
  template <class Use>
  void for_runs(std::size_t begin, std::size_t bytes, Use use) const;
};

template <class Use>
void NodeCall::for_runs(std::size_t begin, std::size_t bytes, Use use) const {
  if (order == nullptr) return use(begin, 0, bytes);
  const std::size_t block_bytes = block * element;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t index = (begin + done) / block_bytes, inside = (begin + done) % block_bytes;
    const std::size_t length = std::min(block_bytes - inside, bytes - done);
    use(order[index] * block_bytes + inside, done, length);
    done += length;
  }
}

}  // namespace gradred
