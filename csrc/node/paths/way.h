// Common base of the plans that carry out a node group's operations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "node/agreement/node_agreement.h"
#include "node/paths/helpers.h"
#include "node/paths/stores.h"

namespace gradred {

// All plans reduce an element in rank order, so all ranks get the same bits whatever the plan. The
// owner keeps the group and the stores alive as long as this object.
class NodeWay {
 public:
  NodeWay(NodeAgreement& group, PeerStores& stores);
  NodeWay(const NodeWay&) = delete;
  NodeWay& operator=(const NodeWay&) = delete;

  void* frame(std::size_t bytes) { return group_.frame(bytes); }  // for Steps

 protected:
  ~NodeWay() = default;

  std::byte* slot(std::size_t rank, DataPath path) const {
    return path == DataPath::kShortSlots ? part_.short_slot(rank, group_.operation())
                                         : part_.slot(rank, group_.operation());
  }

  std::size_t peer_at(std::size_t distance) const { return (rank_ + distance) % size_; }
  Announcement& announcement(std::size_t rank) const { return group_.announcement(rank); }
  // What a rank has contributed to an operation whose data lie in announcements or slots.
  std::byte* given(std::size_t rank, DataPath path) const {
    if (path == DataPath::kInLine) return announcement(rank).data;
    return path == DataPath::kInTree ? group_.in_tree(rank) : slot(rank, path);
  }
  std::byte* own_slot(DataPath path) const { return slot(rank_, path); }
  std::byte* chunk(std::size_t rank, std::size_t index) const {
    return part_.chunk(rank, group_.operation(), index);
  }
  // Bytes of a piece, of which at most `most` may come at a time; of a short block the whole.
  static std::size_t piece_of(std::size_t most, std::size_t block) {
    return std::min(most, block + kCacheLine - 1) / kCacheLine * kCacheLine;
  }
  // Before this rank uses its chunks, of which each has `bytes` bytes. All ranks say the same.
  void place_chunks(std::size_t bytes, std::size_t chunks) {
    group_.part().place(group_.operation(), bytes, chunks);
  }
  const NodeOptions& options() const { return part_.options(); }
  const NodeOptions& usable() const { return part_.usable(); }

  void step_done(std::uint64_t step) { group_.step_done(step); }
  Awaited step_of(std::size_t rank, std::uint64_t step) const { return group_.step_of(rank, step); }
  void steps_end(std::uint64_t steps) { group_.steps_end(steps); }

  // target = operands_[0] op ... op operands_[size - 1]
  void combine(const NodeCall& call, void* target, std::size_t count) {
    combine(call, target, operands_.data(), count);
  }
  void combine(const NodeCall& call, void* target, const void* const* operands,
               std::size_t count) const {
    if (size_ == 2) {
      call.reduce->pair(target, operands[0], operands[1], count);
    } else {
      call.reduce->many(target, operands, size_, count);
    }
  }

  // How many threads of this rank work on an operation.
  std::size_t threads_for(const NodeCall& call) const {
    const bool helped = group_.threads() > 1 && call.bytes() >= options().helped_bytes &&
                        !(reduces(call.kind) && call.reduce->are_programs);
    return helped ? group_.threads() : 1;
  }
  // Calls work(slice, operands, index) for each slice of `count` elements, in so many threads.
  // `operands`: those of all ranks, from the slice's first element on.
  template <class Work>
  void share(const NodeCall& call, std::size_t threads, std::size_t count, const Work& work) {
    if (threads == 1) return work(Slice{0, count}, operands_.data(), 0);
    slice_operands_.resize(threads * size_);
    Helpers::share(threads, [&](std::size_t index) {
      const Slice slice = slice_of(count, threads, index);
      const void** const operands = slice_operands_.data() + index * size_;
      for (std::size_t rank = 0; rank < size_; ++rank) {
        operands[rank] =
            static_cast<const std::byte*>(operands_[rank]) + slice.begin * call.element;
      }
      if (slice.count > 0) work(slice, operands, index);
    });
  }

  NodeAgreement& group_;
  const SharedPart& part_;
  PeerStores& stores_;
  const std::size_t rank_, size_;
  std::vector<const void*> operands_;  // one per rank, a member so that no operation allocates
  std::vector<const void*> slice_operands_;  // the same for each thread that works on an operation
};

inline NodeWay::NodeWay(NodeAgreement& group, PeerStores& stores)
    : group_(group),
      part_(group.part()),
      stores_(stores),
      rank_(static_cast<std::size_t>(group.rank())),
      size_(static_cast<std::size_t>(group.size())),
      operands_(size_) {}

}  // namespace gradred
