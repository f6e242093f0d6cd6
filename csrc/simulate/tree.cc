#include "simulate/tree.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/errors.h"
#include "schedule/combinators.h"

namespace gradred {
namespace {

struct Tree {
  std::vector<int> parents;  // by rank; -1: the root
  std::vector<std::vector<int>> children;
  std::vector<int> depths;
  int height = 0;  // rounds between the deepest rank and the root

  explicit Tree(std::vector<int> parent_of);
};

Tree::Tree(std::vector<int> parent_of)
    : parents(std::move(parent_of)), children(parents.size()), depths(parents.size(), -1) {
  std::vector<int> level;
  for (std::size_t rank = 0; rank < parents.size(); ++rank) {
    if (parents[rank] < 0) {
      level.push_back(static_cast<int>(rank));
    } else {
      children[static_cast<std::size_t>(parents[rank])].push_back(static_cast<int>(rank));
    }
  }
  for (int depth = 0; !level.empty(); ++depth) {
    height = depth;
    std::vector<int> next;
    for (const int rank : level) {
      const auto at = static_cast<std::size_t>(rank);
      depths[at] = depth;
      next.insert(next.end(), children[at].begin(), children[at].end());
    }
    level = std::move(next);
  }
}

// A binary tree in which odd numbers are leaves: the parent of a number has the lowest bit moved
// up.
int parent_in_order(int number, int count) {
  if (number == 0) return -1;
  const int bit = number & -number;
  const int parent = (number ^ bit) | (bit << 1);
  return parent < count ? parent : number ^ bit;
}

// In the second tree numbers are mirrored, or shifted if their count is odd, so that its leaves are
// not those of the first.
int parent_of_host(int host, int hosts, bool is_second) {
  if (!is_second) return parent_in_order(host, hosts);
  if (hosts % 2 == 0) {
    const int parent = parent_in_order(hosts - 1 - host, hosts);
    return parent < 0 ? -1 : hosts - 1 - parent;
  }
  const int parent = parent_in_order((host + hosts - 1) % hosts, hosts);
  return parent < 0 ? -1 : (parent + 1) % hosts;
}

Tree tree_of(int size, int local, bool is_second) {
  const int head = is_second ? local / 2 : 0;  // place of the rank that is connected to other hosts
  std::vector<int> parents;
  for (int rank = 0; rank < size; ++rank) {
    const int host = rank / local, place = (rank - head + local) % local;
    if (place > 0) {
      parents.push_back(host * local + (head + place - 1) % local);
    } else {
      const int parent = parent_of_host(host, size / local, is_second);
      parents.push_back(parent < 0 ? -1 : parent * local + head);
    }
  }
  return Tree(std::move(parents));
}

// What a rank does for one tree in a round. Ranks of one depth send the same piece up, then down.
class OneTree {
 public:
  OneTree(const Tree& tree, int rank, int pieces, int offset, std::uint32_t slot)
      : tree_(tree),
        rank_(static_cast<std::size_t>(rank)),
        pieces_(pieces),
        offset_(offset),
        slot_(slot) {}

  void add(int number, Round& messages, Round& reductions) const {
    const int depth = tree_.depths[rank_], height = tree_.height, parent = tree_.parents[rank_];
    const std::vector<int>& children = tree_.children[rank_];
    const int rises = number - (height - depth), falls = number - (height + depth);
    if (parent >= 0 && is_piece(rises)) messages.push_back(send(parent, chunk(rises)));
    if (parent >= 0 && is_piece(falls + 1)) messages.push_back(recv(parent, chunk(falls + 1)));
    std::uint32_t slot = slot_;
    for (const int child : children) {
      if (is_piece(rises + 1)) {
        const Span inbox = scratch(slot++, chunk(rises + 1).first);
        messages.push_back(recv(child, inbox));
        reductions.push_back(reduce(inbox, chunk(rises + 1)));
      }
      if (is_piece(falls)) messages.push_back(send(child, chunk(falls)));
    }
  }
  std::uint32_t slots() const { return static_cast<std::uint32_t>(tree_.children[rank_].size()); }

 private:
  bool is_piece(int number) const { return 0 <= number && number < pieces_; }
  Span chunk(int piece) const { return work(static_cast<std::uint32_t>(offset_ + piece)); }

  const Tree& tree_;
  std::size_t rank_;
  int pieces_, offset_;
  std::uint32_t slot_;
};

}  // namespace

std::vector<Schedule> two_trees(int size, int local, int pieces) {
  if (size < 1 || local < 1 || size % local != 0 || pieces < 1) {
    throw UsageError("two trees of " + std::to_string(size) + " ranks, " + std::to_string(local) +
                     " on each host, in " + std::to_string(pieces) +
                     " pieces: give a size that is a multiple of the ranks of a host");
  }
  const auto trees = std::make_shared<const std::pair<Tree, Tree>>(tree_of(size, local, false),
                                                                   tree_of(size, local, true));
  const int height = std::max(trees->first.height, trees->second.height);
  const int rounds = size == 1 ? 0 : pieces + 2 * height - 1;
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < size; ++rank) {
    const OneTree first(trees->first, rank, pieces, 0, 0);
    const OneTree second(trees->second, rank, pieces, pieces, first.slots());
    Schedule schedule = blank(Kind::kAllreduce, rank, size, 2 * pieces,
                              static_cast<int>(first.slots() + second.slots()));
    schedule.name = "two_trees";
    schedule.rounds = Rounds(rounds, [trees, first, second](int number) {
      Round round, reductions;
      first.add(number, round, reductions);
      second.add(number, round, reductions);
      round.insert(round.end(), reductions.begin(), reductions.end());
      return round;
    });
    schedules.push_back(std::move(schedule));
  }
  return schedules;
}

}  // namespace gradred
