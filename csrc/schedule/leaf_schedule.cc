#include "schedule/leaf_schedule.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/leaf_tree.h"
#include "schedule/combinators.h"

namespace gradred {
namespace {

// Makes the rounds of one rank. The part number i of all ranks has slot i of the scratch buffer.
class LeafRounds {
 public:
  LeafRounds(int rank, const LeafTree& tree, std::uint32_t chunks, std::size_t ranks)
      : rank_(rank), tree_(tree), chunks_(chunks) {
    for (std::size_t from = 0; from < ranks; ++from) {
      for (const LeafNode& node : tree.parts_of(from)) {
        if (static_cast<int>(from) == rank && own_.empty()) first_own_ = parts_.size();
        parts_.push_back(node);
        if (static_cast<int>(from) == rank) own_.push_back(node);
        owners_.push_back(static_cast<int>(from));
      }
    }
  }

  std::uint32_t slots() const { return static_cast<std::uint32_t>(parts_.size()); }

  // Each rank's parts go to the rank that adds up the chunk, which then does so.
  Round add_up(int ranks) {
    Round round;
    for (int to = 0; to < ranks; ++to) {
      if (to == rank_) continue;
      for (std::uint32_t part = 0; part < own_.size(); ++part) {
        round.push_back(send(to, input(chunk_of(to), 1, part)));
      }
    }
    for (std::uint32_t part = 0; part < parts_.size(); ++part) {
      if (owners_[part] != rank_) round.push_back(recv(owners_[part], scratch(part, mine())));
    }
    const Span sum = sum_of(tree_.root(), true, round);
    if (sum.buffer != BufferId::kWork) round.push_back(copy(sum, work(mine())));
    return round;
  }

  Round pass_on(int ranks) const {
    Round round;
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank_) continue;
      round.push_back(recv(peer, work(chunk_of(peer))));
      round.push_back(send(peer, work(mine())));
    }
    return round;
  }

 private:
  std::uint32_t chunk_of(int rank) const {
    return chunks_ == 1 ? 0 : static_cast<std::uint32_t>(rank);
  }
  std::uint32_t mine() const { return chunk_of(rank_); }

  // Adds the steps that compute this rank's chunk of a node, and returns where it is then.
  Span sum_of(const LeafNode& node, bool is_root, Round& round) {
    if (parts_[next_] == node) {
      const std::uint32_t part = next_++;
      if (owners_[part] != rank_) return scratch(part, mine());
      return input(mine(), 1, part - static_cast<std::uint32_t>(first_own_));
    }
    const std::uint32_t first = next_;
    const Span left = sum_of(node.left(), false, round);
    if (!tree_.has_right(node)) return left;
    const Span right = sum_of(node.right(), false, round);
    const Span target = is_root ? work(mine()) : scratch(first, mine());
    round.push_back(reduce(right, left, target));
    return target;
  }

  const int rank_;
  const LeafTree& tree_;
  const std::uint32_t chunks_;
  std::vector<LeafNode> parts_, own_;  // of all ranks, and of this one
  std::vector<int> owners_;            // the ranks that have them
  std::size_t first_own_ = 0;
  std::uint32_t next_ = 0;  // the part that sum_of() comes to next
};

}  // namespace

Schedule leaf_tree(int rank, std::vector<int> leaves, std::uint32_t chunks) {
  const auto size = static_cast<int>(leaves.size());
  Schedule schedule = blank(Kind::kAllreduce, rank, size, static_cast<int>(chunks));
  schedule.name = "leaf_tree";
  schedule.in_place = false;
  schedule.leaves = std::move(leaves);
  if (!fits_leaves(schedule)) throw UsageError(std::string(kLeavesMustBe));
  const LeafTree tree(schedule.leaves);
  LeafRounds rounds(rank, tree, chunks, schedule.leaves.size());
  schedule.scratch_slots = rounds.slots();
  std::vector<Round> list = {rounds.add_up(size)};
  if (chunks > 1) list.push_back(rounds.pass_on(size));
  schedule.rounds = Rounds(std::move(list));
  return schedule;
}

bool fits_leaves(const Schedule& schedule) {
  const std::vector<int>& leaves = schedule.leaves;
  return leaves.size() == static_cast<std::size_t>(schedule.size) && !schedule.in_place &&
         schedule.collective == Kind::kAllreduce && !leaves.empty() &&
         std::ranges::min(leaves) >= 0 && std::ranges::max(leaves) > 0;
}

std::size_t vectors_of_input(const Schedule& schedule) {
  if (schedule.leaves.empty()) return 1;
  return LeafTree(schedule.leaves).parts_of(static_cast<std::size_t>(schedule.rank)).size();
}

}  // namespace gradred
