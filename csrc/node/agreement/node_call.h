// The arguments of one operation of a node group on one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/flow.h"
#include "base/in_place.h"
#include "base/signature.h"
#include "reduce/reduce.h"

namespace gradred {

// Where the data of an operation travel, chosen by their size: in the announcements, in the short
// slots, in the slots, chunk by chunk, or in announcements that the tree of flags has gathered.
enum class DataPath : std::uint8_t { kInLine, kShortSlots, kSlots, kChunks, kInTree };

// A call of any kind of base/kinds.h, which says what a rank gives and gets. `send` holds what it
// gives, `recv` receives what it gets. In place (kInPlace), `recv` holds the input: this rank's
// block at its place, if each rank gives a block.
//   reduce_scatter_block  In place, `recv` holds size * count elements, and the result replaces the
//                         first count of them.
//   bcast                 `recv` holds count elements. `send` is ignored.
//   alltoall              `send` holds one block for each rank, `recv` one block from each rank,
//                         both in rank order. `splits` gives their lengths. Never in place. `count`
//                         is the largest number of elements that any rank sends.
// If `parts` is set, the blocks are consecutive parts of one vector of `count` elements. `parts`
// gives their lengths, and some parts may be empty. Each rank's part has the same position in
// `recv` as in the vector.
//   reduce_scatter_block  `send` (or `recv`, in place) holds the whole vector. Of `recv`, the
//                         operation writes only this rank's part.
//   allgather             Always in place.
struct NodeCall {
  Kind kind = Kind::kAllreduce;
  const void* send = kInPlace;  // or the input buffer, which does not overlap recv
  void* recv = nullptr;
  std::size_t count = 0;
  std::size_t element = 0;  // bytes of one element
  const ReduceFunctions* reduce = nullptr;
  int root = 0;
  Signature signature;
  // The first element of each rank's part, followed by `count`. nullptr: all blocks have equal
  // length. All ranks agree on the values. The caller keeps the array alive as long as the call.
  const std::size_t* parts = nullptr;
  // Used with `parts` only. The vector is cut into blocks of `block` elements, and its block i is
  // stored as block order[i] of the buffer. nullptr: the blocks are stored in order.
  const std::uint32_t* order = nullptr;
  std::size_t block = 0;
  // For an alltoall: the number of elements that rank `from` sends to rank `to`, at from * size +
  // to. The caller keeps the array alive as long as the call.
  const std::size_t* splits = nullptr;
  // Rank 0 is the leader of this operation: it receives the data of all ranks, and what it later
  // passes on is the result of the other ranks. Such an operation needs a NodeExecution, and
  // may_lead() must be true for the bytes that a rank sends and for the bytes that the leader
  // passes on.
  //   allreduce  The leader receives the sums.
  //   allgather  `parts` says where in `recv` each rank's `count` elements go. The leader passes on
  //              `total` elements. Always in place.
  //   bcast      The leader receives the data of the root. `root` is -1 if the root is not in this
  //              group.
  bool led = false;
  std::size_t total = 0;  // elements that the leader passes on; 0: count
  // For an allreduce or a broadcast by a NodeExecution: this rank's input arrives, and its result
  // is taken away, while the operation runs. nullptr: the whole input is there from the start.
  Flow* flow = nullptr;
  // The same call on arrays in device memory, as flow->device() returns it. If all ranks have one,
  // the operation runs on the devices.
  DeviceCall* device = nullptr;

  std::size_t bytes() const { return count * element; }
  // Begin and length in bytes of the block or part of `rank`, within the vector that all of them
  // make.
  std::size_t part_begin(std::size_t rank) const {
    return (parts != nullptr ? parts[rank] : rank * count) * element;
  }
  std::size_t part_bytes(std::size_t rank) const { return part_begin(rank + 1) - part_begin(rank); }
  std::size_t longest_part(std::size_t ranks) const;
  // Bytes that decide the data path. With `parts`, an allgather counts the longest part, so that
  // all ranks choose the same path.
  std::size_t input_bytes(std::size_t ranks) const;
  // Bytes that `rank` contributes, which begin at input(rank).
  std::size_t given_bytes(std::size_t rank, std::size_t ranks) const;
  const std::byte* input(std::size_t rank) const;
  // For an alltoall: the bytes that rank `from` sends to rank `to`. given_before() sums what `from`
  // sends to the ranks below `to`; got_before() sums what `to` receives from the ranks below
  // `from`.
  std::size_t split_bytes(std::size_t from, std::size_t to, std::size_t ranks) const {
    return splits[from * ranks + to] * element;
  }
  std::size_t given_before(std::size_t from, std::size_t to, std::size_t ranks) const;
  std::size_t got_before(std::size_t to, std::size_t from, std::size_t ranks) const;
  std::size_t passed_on_bytes() const { return (total != 0 ? total : count) * element; }

  // Visits the contiguous runs of recv that hold the vector's bytes from `begin` on. Calls
  // use(offset in recv, bytes visited before, bytes of this run) for each run.
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
