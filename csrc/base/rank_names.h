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

  // "rank 1", "rank 1 (COMM_WORLD rank 3)", "rank 1 (COMM_WORLD rank 3, details)"
  std::string of(std::size_t rank, std::string_view details = {}) const {
    std::string added(details);
    if (rank < world_ranks_.size() && world_ranks_[rank] != static_cast<int>(rank)) {
      added = "COMM_WORLD rank " + std::to_string(world_ranks_[rank]) +
              (details.empty() ? "" : ", ") + added;
    }
    return "rank " + std::to_string(rank) + (added.empty() ? "" : " (" + added + ")");
  }
  std::string of(int rank, std::string_view details = {}) const {
    return of(static_cast<std::size_t>(rank), details);
  }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

 private:
  std::vector<int> world_ranks_;
};

}  // namespace gradred
