// How the ranks of a communicator agree on a part of memory that they share already.
//
// Rank 0 takes the part from a pool of which all ranks are members, as far as it knows, and offers
// it in the first message of the communicator. If every rank has that pool, they use the part, and
// no rank waits for anything more.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/rank_names.h"
#include "calls/settings.h"
#include "node/group/group.h"
#include "node/memory/bootstrap.h"
#include "node/memory/pool.h"

namespace gradred {

struct MemoryOffer {
  static constexpr std::size_t kMost = 4;
  enum class Wish : std::uint64_t { kOff, kShares };

  Wish wish = Wish::kOff;
  std::array<std::uint64_t, kMost> pools{};  // the tokens of this rank's pools; 0: none
  std::uint64_t begin = 0;                   // rank 0: of the part, in the only pool that it offers
};

// This rank's wish for the next communicator.
MemoryOffer::Wish memory_wish(const Settings& settings);
// `first_bytes`: of the call for which the ranks share memory; 0: not known.
NodeOptions node_options(const Settings& settings, std::size_t first_bytes = 0);
// In words, why these wishes keep the ranks from sharing memory; empty: they do not.
std::string why_no_memory(std::span<const MemoryOffer::Wish> all);

// Collective. A group in memory that these ranks share already, or else in memory of its own. As
// NodeGroup::create(). `at_most`: the bytes of its calls, a power of two; 0: any number.
std::unique_ptr<NodeGroup> make_group(Bootstrap& calls, const NodeOptions& options,
                                      std::string& why_not, std::size_t at_most = 0);

class MemoryAgreement {
 public:
  // Local. `wish`: this rank's.
  MemoryAgreement(int rank, RankNames names, MemoryOffer::Wish wish, const NodeOptions& options);

  const MemoryOffer& offer() const { return offer_; }
  // Local, with the same result on all ranks: nullptr if they have no pool in common, or if one
  // rank does not share.
  std::unique_ptr<NodeGroup> settle(std::span<const MemoryOffer> all);

 private:
  void reserve(const NodeOptions& options);

  const RankNames names_;
  const int rank_;
  std::vector<std::shared_ptr<Pool>> known_;
  PoolPart* reserved_ = nullptr;  // by rank 0, in the first of these
  MemoryOffer offer_;
};

}  // namespace gradred
