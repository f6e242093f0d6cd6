// How messages name the ranks of a communicator: by its own numbers, or by those that the program
// uses. Where they differ, messages add the rank in MPI_COMM_WORLD, which the launcher uses. A
// communicator that carries one persistent operation bears the name of that.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradred {

class RankNames {
 public:
  enum class Carries : bool { kAny, kPersistent };  // operations of the communicator

  RankNames() = default;
  // `world_ranks`: for each rank, its rank in MPI_COMM_WORLD; empty if unknown.
  explicit RankNames(std::vector<int> world_ranks) : world_ranks_(std::move(world_ranks)) {}
  // For some ranks of a communicator. `numbers`: for each, its rank there.
  RankNames(std::vector<int> world_ranks, std::vector<int> numbers)
      : world_ranks_(std::move(world_ranks)), numbers_(std::move(numbers)) {}

  // `called`: for each rank of the communicator, the number that the program uses; empty for its
  // own.
  void call(std::vector<int> called) { called_ = std::move(called); }
  void call_it(Carries carried) { carries_ = carried; }
  Carries carries() const { return carries_; }
  // The names of some ranks of the communicator. They keep their numbers.
  RankNames among(const std::vector<int>& members) const {
    RankNames some(of_all(world_ranks_, members), members);
    some.called_ = called_;
    some.carries_ = carries_;
    return some;
  }
  // The names of some ranks that form a new communicator and are numbered anew.
  RankNames renumbered(const std::vector<int>& members) const {
    RankNames some(of_all(world_ranks_, members));
    some.called_ = of_all(called_, members);
    return some;
  }

  int number(std::size_t rank) const {
    return rank < numbers_.size() ? numbers_[rank] : static_cast<int>(rank);
  }
  // The number that the program uses for this rank.
  int called(int number) const {
    const auto place = static_cast<std::size_t>(number);
    return place < called_.size() ? called_[place] : number;
  }

  // "rank 1", "rank 1 (COMM_WORLD rank 3)", "rank 1 (COMM_WORLD rank 3, details)"
  std::string of(std::size_t rank, std::string_view details = {}) const {
    std::string added(details);
    const int shown = called(number(rank));
    if (rank < world_ranks_.size() && world_ranks_[rank] != shown) {
      added = "COMM_WORLD rank " + std::to_string(world_ranks_[rank]) +
              (details.empty() ? "" : ", ") + added;
    }
    return "rank " + std::to_string(shown) + (added.empty() ? "" : " (" + added + ")");
  }
  std::string of(int rank, std::string_view details = {}) const {
    return of(static_cast<std::size_t>(rank), details);
  }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

 private:
  static std::vector<int> of_all(const std::vector<int>& known, const std::vector<int>& members) {
    std::vector<int> found;
    if (known.empty()) return found;
    for (const int member : members) found.push_back(known[static_cast<std::size_t>(member)]);
    return found;
  }

  std::vector<int> world_ranks_;
  std::vector<int> numbers_;
  std::vector<int> called_;
  Carries carries_ = Carries::kAny;
};

}  // namespace gradred
