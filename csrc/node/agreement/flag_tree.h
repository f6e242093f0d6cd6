// Short calls of many ranks. If each of p ranks read the announcements of all others, each would
// fetch p - 1 cache lines, and each line would go to p - 1 cores. So the ranks are divided: the
// first one of each division gathers the announcements there, with their data, and all ranks read
// what these few have gathered. All fold the same inputs in the same order as without the tree.
//
// No rank depends on another one's gathering. What is not there soon, since the first rank is late,
// has found that its division disagrees, or carries out the operation in steps, is read in the
// announcements themselves. So there is one way to wait for long, to compare and to fail.
//
// The rule of node_agreement.h holds for what is gathered, too: it is written again by operation
// k + 2, when all ranks have left operation k. But a rank may not have gathered for any number of
// operations, so the whole number of the operation is compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/signature.h"
#include "node/memory/layout.h"

namespace gradred {

class NodeAgreement;

class FlagTree {
 public:
  // Divides each cache group evenly. A division has at most so many ranks that there may be as many
  // divisions.
  FlagTree(NodeAgreement& group, std::span<const std::uint32_t> cache_groups);

  // After this rank has announced: waits for all announcements. Returns whether they agree. Then
  // NodeAgreement::in_tree() has the data of all ranks, `bytes` of each.
  bool await(const Signature& signature, std::size_t bytes);

  // How many announcements this rank has read in what others had gathered.
  std::uint64_t gathered_reads() const { return gathered_reads_; }

 private:
  struct Division {
    std::vector<std::size_t> ranks;
    std::size_t begin = 0;  // of its Gathered
  };

  bool gather(const Division& own, const Signature& signature, std::size_t bytes);
  bool read(const Division& theirs, const Signature& signature, std::size_t bytes);

  NodeAgreement& group_;
  std::vector<Division> divisions_;
  std::size_t own_ = 0;
  std::uint64_t gathered_reads_ = 0;
};

}  // namespace gradred
