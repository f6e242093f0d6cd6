// Sums of leaves, and of parts, by the tree of base/leaf_tree.h. Each sum of two nodes is rounded
// to the type.
#pragma once

#include <cstddef>

#include "base/leaf_tree.h"
#include "base/types.h"

namespace gradred {

// Vectors of `count` elements, one after another.
struct Vectors {
  const void* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::kUInt8;
  Op op = Op::kSum;  // kAvg and kPremul sum
};

// Adds up a rank's own leaves. Writes its parts, each a vector, one after another. With kPremul
// each leaf is scaled by `factor` first, as by scale() of reduce.h.
void add_leaves(const LeafTree& tree, std::size_t rank, const Vectors& leaves, double factor,
                void* parts);

// Adds up the parts of all ranks, each of which has room for `most` vectors. With kAvg the sum is
// divided by the number of leaves.
void add_parts(const LeafTree& tree, const Vectors& parts, std::size_t most, void* result);

}  // namespace gradred
