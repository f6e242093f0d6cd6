// How messages name the ranks of a communicator: by its own numbers and, where they differ, by
// those in MPI_COMM_WORLD, which the launcher uses.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradred {

class RankNames {
 public:
  RankNames() = default;
  // By rank, the rank in MPI_COMM_WORLD; empty: not known.
  explicit RankNames(std::vector<int> world_ranks) : world_ranks_(std::move(world_ranks)) {}
  // Of some ranks of a communicator, by their numbers there.
  RankNames(std::vector<int> world_ranks, std::vector<int> numbers)
      : world_ranks_(std::move(world_ranks)), numbers_(std::move(numbers)) {}

  int number(std::size_t rank) const {
    return rank < numbers_.size() ? numbers_[rank] : static_cast<int>(rank);
  }

  // "rank 1", "rank 1 (COMM_WORLD rank 3)", "rank 1 (COMM_WORLD rank 3, details)"
  std::string of(std::size_t rank, std::string_view details = {}) const {
    std::string added(details);
    if (rank < world_ranks_.size() && world_ranks_[rank] != number(rank)) {
      added = "COMM_WORLD rank " + std::to_string(world_ranks_[rank]) +
              (details.empty() ? "" : ", ") + added;
    }
    return "rank " + std::to_string(number(rank)) + (added.empty() ? "" : " (" + added + ")");
  }
  std::string of(int rank, std::string_view details = {}) const {
    return of(static_cast<std::size_t>(rank), details);
  }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

 private:
  std::vector<int> world_ranks_;
  std::vector<int> numbers_;
};

}  // namespace gradred
