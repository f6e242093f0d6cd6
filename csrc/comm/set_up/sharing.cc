#include "comm/set_up/sharing.h"

#include <algorithm>

#include "engine/notices/registry.h"
#include "node/memory/cores.h"

namespace gradred {

MemoryOffer::Wish memory_wish(const Settings& settings) {
  return settings.shared_memory ? MemoryOffer::Wish::kShares : MemoryOffer::Wish::kOff;
}

NodeOptions node_options(const Settings& settings, std::size_t first_bytes) {
  constexpr std::size_t kNever = ~std::size_t{0};
  return {.ring_bytes = std::clamp<std::size_t>(core_cache_bytes(), 1 << 20, 4 << 20),
          .single_copy_bytes = settings.single_copy ? NodeOptions().single_copy_bytes : kNever,
          .ranks_on_host = settings.ranks_on_host,
          .threads = settings.threads,
          .first_bytes = first_bytes};
}

std::string why_no_memory(std::span<const MemoryOffer::Wish> all) {
  const bool off = std::ranges::find(all, MemoryOffer::Wish::kOff) != all.end();
  return off ? "GRADRED_SHM is off" : "";
}

std::unique_ptr<NodeGroup> make_group(Bootstrap& calls, const NodeOptions& options,
                                      std::string& why_not, std::size_t at_most) {
  const auto ranks = static_cast<std::size_t>(calls.size());
  MemoryAgreement memory(calls.rank(), calls.names(), MemoryOffer::Wish::kShares,
                         at_most == 0 ? options : options.for_at_most(at_most, ranks));
  const MemoryOffer mine = memory.offer();
  std::vector<MemoryOffer> all(static_cast<std::size_t>(calls.size()));
  calls.allgather(&mine, sizeof mine, all.data());
  std::unique_ptr<NodeGroup> group = memory.settle(all);
  if (group != nullptr) return group;
  group = NodeGroup::create(calls, options, why_not);
  if (group != nullptr) Registry::get().add_pool(group->pool());  // others take parts of it
  return group;
}

MemoryAgreement::MemoryAgreement(int rank, RankNames names, MemoryOffer::Wish wish,
                                 const NodeOptions& options)
    : names_(std::move(names)), rank_(rank), offer_{.wish = wish} {
  if (wish != MemoryOffer::Wish::kShares) return;
  known_ = Registry::get().pools_over(names_.world_ranks());
  if (rank_ == 0) {
    reserve(options);
    return;
  }
  for (std::size_t i = 0; i < std::min(known_.size(), MemoryOffer::kMost); ++i) {
    offer_.pools[i] = known_[i]->token();
  }
}

void MemoryAgreement::reserve(const NodeOptions& options) {
  for (const auto& pool : known_) {
    reserved_ = NodeGroup::reserve(*pool, *pool->find(names_.world_ranks()), options);
    if (reserved_ == nullptr) continue;
    offer_.pools[0] = pool->token();
    offer_.begin = reserved_->lines;
    known_ = {pool};
    return;
  }
}

std::unique_ptr<NodeGroup> MemoryAgreement::settle(std::span<const MemoryOffer> all) {
  const std::uint64_t token = all.front().pools[0];
  const bool common = token != 0 && std::ranges::all_of(all, [&](const MemoryOffer& offer) {
                        return std::ranges::find(offer.pools, token) != offer.pools.end();
                      });
  if (!common) {
    if (reserved_ != nullptr) known_.front()->free(*reserved_);
    return nullptr;
  }
  const auto& pool =
      *std::ranges::find(known_, token, [](const auto& one) { return one->token(); });
  Registry::get().add_pool(pool);
  return NodeGroup::join(pool, all.front().begin, *pool->find(names_.world_ranks()),
                         static_cast<std::size_t>(rank_), names_);
}

}  // namespace gradred
