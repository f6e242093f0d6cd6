// A fixed binary tree over a list of leaves: which leaves are added up first depends on their
// number alone, not on which rank has which.
//
// A node covers `width` leaves, a power of two, from a multiple of `width` on. It is the sum of its
// halves. Where the list ends inside a node, the node has fewer leaves, and without a right half it
// is its left half. So each rank can add up the largest nodes all of whose leaves it has, its
// parts, and what is left to do needs no leaves any more.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

namespace gradred {

struct LeafNode {
  std::size_t first = 0, width = 1;

  LeafNode left() const { return {first, width / 2}; }
  LeafNode right() const { return {first + width / 2, width / 2}; }
  bool operator==(const LeafNode&) const = default;
};

// The leaves of all ranks, those of rank 0 first: how many each rank has.
class LeafTree {
 public:
  explicit LeafTree(std::span<const int> leaves) : begins_(leaves.size() + 1) {
    std::partial_sum(leaves.begin(), leaves.end(), begins_.begin() + 1,
                     [](std::size_t sum, int n) { return sum + static_cast<std::size_t>(n); });
  }

  std::size_t ranks() const { return begins_.size() - 1; }
  std::size_t leaves() const { return begins_.back(); }
  std::size_t first_leaf(std::size_t rank) const { return begins_[rank]; }
  LeafNode root() const { return {0, std::bit_ceil(leaves())}; }
  bool has_right(const LeafNode& node) const { return node.right().first < leaves(); }
  // In the order of leaves; a rank without leaves has no parts.
  std::vector<LeafNode> parts_of(std::size_t rank) const {
    std::vector<LeafNode> parts;
    if (leaves() > 0) add_parts(root(), begins_[rank], begins_[rank + 1], parts);
    return parts;
  }

 private:
  void add_parts(const LeafNode& node, std::size_t begin, std::size_t end,
                 std::vector<LeafNode>& parts) const {
    const std::size_t node_end = std::min(node.first + node.width, leaves());
    if (node_end <= begin || end <= node.first) return;
    if (begin <= node.first && node_end <= end) return parts.push_back(node);
    add_parts(node.left(), begin, end, parts);
    add_parts(node.right(), begin, end, parts);
  }

  std::vector<std::size_t> begins_;
};

}  // namespace gradred
