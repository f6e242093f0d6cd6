// How ranks agree on a tag range: a duplicate, and a number among the communicators on it.
//
// Each rank offers what it has, in the first message of the communicator, and the ranks take what
// all of them have. If they have nothing in common, they continue: with other numbers, and with a
// duplicate that they make.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/set_up/set_up_calls.h"
#include "engine/notices/registry.h"

namespace gradred {

// Numbers are offered in windows of 64.
struct NumberOffer {
  std::uint64_t window = 0;
  std::uint64_t free = 0;  // a bit each; rank 0 decides, and offers what it has reserved
};

struct TagRangeOffer {
  static constexpr std::size_t kMost = 6;

  NumberOffer numbers;
  std::uint64_t new_serial = 0;                // rank 0: for a new duplicate
  std::array<std::uint64_t, kMost> serials{};  // of this rank's duplicates; 0: none
};

class TagRangeAgreement {
 public:
  // Local. `group`: by rank, the rank in MPI_COMM_WORLD; empty if some ranks are not in it.
  TagRangeAgreement(const SetUpCalls& calls, std::vector<int> group);
  ~TagRangeAgreement() { give_back(); }
  TagRangeAgreement(const TagRangeAgreement&) = delete;
  TagRangeAgreement& operator=(const TagRangeAgreement&) = delete;

  const TagRangeOffer& offer() const { return offer_; }
  // Collective and blocking if the ranks have nothing in common. Returns nullptr, on all ranks, if
  // the MPI has no communicators or tags left.
  std::unique_ptr<TagRange> settle(SetUpCalls& calls, std::span<const TagRangeOffer> all);

 private:
  void offer_numbers(std::uint64_t window);
  int number(SetUpCalls& calls, std::vector<NumberOffer> all);
  std::shared_ptr<Duplicate> common(std::span<const TagRangeOffer> all) const;
  void give_back();

  const std::vector<int> group_;
  const bool leads_;
  const std::vector<std::shared_ptr<Duplicate>> known_;  // alive until all ranks have decided
  TagRangeOffer offer_;
};

}  // namespace gradred
