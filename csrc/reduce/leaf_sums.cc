#include "reduce/leaf_sums.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/copy_bytes.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{8} << 10;  // small, as all levels have two blocks

// A node whose sum lies in memory.
struct Known {
  LeafNode node;
  const std::byte* sum;
};

// Adds up a run of elements of some nodes, in the order of their leaves.
class Block {
 public:
  Block(const LeafTree& tree, const Vectors& vectors, const std::vector<Known>& known)
      : tree_(tree),
        vectors_(vectors),
        known_(known),
        element_(size_of(vectors.dtype)),
        functions_(*find_reduction(vectors.op, vectors.dtype)),
        rooms_(2 * static_cast<std::size_t>(std::bit_width(tree.root().width)) * kBlockBytes) {}

  // Writes the sums of the nodes, each a vector, one after another.
  void write(const std::vector<LeafNode>& nodes, double factor, void* target) {
    factor_ = vectors_.op == Op::kPremul ? factor : 1.0;
    const std::size_t most = kBlockBytes / element_;
    for (first_ = 0; first_ < vectors_.count; first_ += most) {
      count_ = std::min(most, vectors_.count - first_);
      next_ = 0;
      auto* to = static_cast<std::byte*>(target) + first_ * element_;
      for (const LeafNode& node : nodes) {
        const std::byte* const sum = sum_of(node, to);
        if (sum != to) copy_bytes(to, sum, count_ * element_);
        to += vectors_.count * element_;
      }
    }
  }

 private:
  // Returns where the sum is: in `room`, or where it was known.
  const std::byte* sum_of(const LeafNode& node, std::byte* room) {
    if (known_[next_].node == node) return scaled(known_[next_++].sum + first_ * element_, room);
    if (!tree_.has_right(node)) return sum_of(node.left(), room);
    const auto level = static_cast<std::size_t>(std::bit_width(node.width)) - 1;
    const std::byte* const left = sum_of(node.left(), &rooms_[2 * level * kBlockBytes]);
    const std::byte* const right = sum_of(node.right(), &rooms_[(2 * level + 1) * kBlockBytes]);
    functions_.pair(room, left, right, count_);
    return room;
  }

  const std::byte* scaled(const std::byte* leaf, std::byte* room) const {
    if (vectors_.op != Op::kPremul) return leaf;
    copy_bytes(room, leaf, count_ * element_);
    scale(room, count_, vectors_.dtype, factor_, false);
    return room;
  }

  const LeafTree& tree_;
  const Vectors& vectors_;
  const std::vector<Known>& known_;
  const std::size_t element_;
  const ReduceFunctions& functions_;
  std::vector<std::byte> rooms_;  // two blocks for each level of the tree
  double factor_ = 1.0;
  std::size_t first_ = 0, count_ = 0;  // the run
  std::size_t next_ = 0;               // the known node that sum_of() comes to next
};

const std::byte* vector_at(const Vectors& vectors, std::size_t number) {
  const std::size_t bytes = vectors.count * size_of(vectors.dtype);
  return static_cast<const std::byte*>(vectors.data) + number * bytes;
}

}  // namespace

void add_leaves(const LeafTree& tree, std::size_t rank, const Vectors& leaves, double factor,
                void* parts) {
  std::vector<Known> known;
  const std::size_t begin = tree.first_leaf(rank);
  for (std::size_t leaf = begin; leaf < tree.first_leaf(rank + 1); ++leaf) {
    known.push_back({{leaf, 1}, vector_at(leaves, leaf - begin)});
  }
  Block(tree, leaves, known).write(tree.parts_of(rank), factor, parts);
}

void add_parts(const LeafTree& tree, const Vectors& parts, std::size_t most, void* result) {
  std::vector<Known> known;
  for (std::size_t rank = 0; rank < tree.ranks(); ++rank) {
    std::size_t number = rank * most;
    for (const LeafNode& node : tree.parts_of(rank)) {
      known.push_back({node, vector_at(parts, number++)});
    }
  }
  const Op op = parts.op == Op::kPremul ? Op::kSum : parts.op;  // the leaves have been scaled
  const Vectors sums{parts.data, parts.count, parts.dtype, op};
  Block(tree, sums, known).write({tree.root()}, 1.0, result);
  if (op == Op::kAvg) {
    scale(result, parts.count, parts.dtype, static_cast<double>(tree.leaves()), true);
  } else if (tree.leaves() == 1 && gives_truth(op, parts.dtype)) {
    find_reduction(Op::kLor, parts.dtype)->pair(result, result, result, parts.count);
  }
}

}  // namespace gradred
