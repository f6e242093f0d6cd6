#include "node/agreement/flag_tree.h"

#include <algorithm>

#include "node/agreement/node_agreement.h"
#include "node/memory/copy.h"
#include "schedule/partition.h"

namespace gradred {

FlagTree::FlagTree(NodeAgreement& group, std::span<const std::uint32_t> cache_groups)
    : group_(group) {
  const std::size_t ranks = cache_groups.size();
  std::size_t most = 1;
  while ((most + 1) * (most + 1) <= ranks) ++most;
  std::vector<std::vector<std::size_t>> members(std::ranges::max(cache_groups) + 1);
  for (std::size_t rank = 0; rank < ranks; ++rank) members[cache_groups[rank]].push_back(rank);
  std::size_t end = 0;
  for (const auto& together : members) {
    const Partition parts{together.size(), (together.size() + most - 1) / most};
    for (std::size_t part = 0; part < parts.chunks; ++part) {
      const std::span some(together.data() + parts.begin(part), parts.length(part));
      const bool own =
          std::ranges::find(some, static_cast<std::size_t>(group.rank())) != some.end();
      if (own) own_ = divisions_.size();
      divisions_.push_back({{some.begin(), some.end()}, end});
      end += Gathered::bytes_for(some.size());
    }
  }
}

// Each rank begins with its own division, so that not all read the same lines at once.
bool FlagTree::await(const Signature& signature, std::size_t bytes) {
  const Division& own = divisions_[own_];
  const bool gathers = own.ranks.front() == static_cast<std::size_t>(group_.rank());
  bool same = gathers ? gather(own, signature, bytes) : read(own, signature, bytes);
  for (std::size_t distance = 1; distance < divisions_.size(); ++distance) {
    same &= read(divisions_[(own_ + distance) % divisions_.size()], signature, bytes);
  }
  return same;
}

bool FlagTree::gather(const Division& own, const Signature& signature, std::size_t bytes) {
  const std::uint64_t head = group_.head(signature);
  Gathered& gathered = group_.part().gathered(own.begin, group_.operation());
  std::byte* to = gathered.data(bytes);
  bool same = true;
  for (const std::size_t rank : own.ranks) {
    if (rank != own.ranks.front()) same &= group_.await_announcement(rank, head, signature.what);
    group_.in_tree(rank) = group_.announcement(rank).data;
    copy_few(to, group_.in_tree(rank), bytes);
    to += bytes;
  }
  if (!same) return false;
  gathered.head = head;
  gathered.what = signature.what;
  gathered.operation.store(group_.operation(), std::memory_order_release);
  return true;
}

bool FlagTree::read(const Division& theirs, const Signature& signature, std::size_t bytes) {
  const std::uint64_t head = group_.head(signature);
  Gathered& gathered = group_.part().gathered(theirs.begin, group_.operation());
  if (group_.waiter().comes_soon(gathered.operation, group_.operation())) {
    std::byte* from = gathered.data(bytes);
    for (const std::size_t rank : theirs.ranks) {
      group_.in_tree(rank) = from;
      from += bytes;
    }
    gathered_reads_ += theirs.ranks.size();
    return gathered.head == head && gathered.what == signature.what;
  }
  bool same = true;
  for (const std::size_t rank : theirs.ranks) {
    if (static_cast<int>(rank) != group_.rank()) {
      same &= group_.await_announcement(rank, head, signature.what);
    }
    group_.in_tree(rank) = group_.announcement(rank).data;
  }
  return same;
}

}  // namespace gradred
