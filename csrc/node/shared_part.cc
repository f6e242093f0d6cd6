#include "node/shared_part.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace gradred {

NodeOptions SharedPart::rounded(NodeOptions options, std::size_t ranks) {
  const auto pages = [](std::size_t bytes) { return std::max(kPage, bytes / kPage * kPage); };
  options.slot_bytes = pages(options.slot_bytes);
  options.chunk_bytes = pages(std::max(options.chunk_bytes, ranks * kCacheLine));
  options.piece_bytes = pages(std::min(options.piece_bytes, options.chunk_bytes));
  options.depth = std::max<std::size_t>(4, options.depth);
  return options;
}

// Allocates `wanted` of a part, unless that is done already.
void SharedPart::populate(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                          PoolPart::Real wanted) {
  if (part.real >= wanted) return;
  const Layout layout(ranks, options);
  if (wanted == PoolPart::Real::kAll) {
    pool.populate(part, 0, layout.bytes);
  } else {
    const NodeOptions beginning = options.beginning(ranks);
    pool.populate(part, 0, layout.slots);
    for (std::size_t slot = 0; slot < 2 * ranks; ++slot) {
      pool.populate(part, layout.slots + slot * options.slot_bytes, beginning.slot_bytes);
    }
    for (std::size_t chunk = 0; chunk < ranks * options.depth; ++chunk) {
      pool.populate(part, layout.chunks + chunk * options.chunk_bytes, beginning.chunk_bytes);
    }
  }
  part.real = wanted;
}

void SharedPart::prepare(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                         PoolPart::Real wanted) {
  populate(pool, part, ranks, options, wanted);
  std::byte* const memory = pool.at(part.begin);
  const Layout layout(ranks, options);
  std::memset(memory, 0, layout.slots);
  auto& header = *reinterpret_cast<Header*>(memory);
  auto* states = reinterpret_cast<RankState*>(memory + layout.states);
  const std::uint64_t last = options.first_operation - 1;
  header.options = options;
  header.whole_from = part.real == PoolPart::Real::kAll ? last : Header::kNotYet;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    states[rank].announcement[last & 1].head.store(last << 32, std::memory_order_relaxed);
    states[rank].announcement[~last & 1].head.store((last - 1) << 32, std::memory_order_relaxed);
  }
  header.users.store(static_cast<std::uint32_t>(ranks), std::memory_order_release);
  pool.hand_over(part);
}

SharedPart::SharedPart(std::shared_ptr<Pool> pool, std::size_t begin, std::size_t rank,
                       std::size_t ranks)
    : pool_(std::move(pool)),
      memory_(pool_->at(begin)),
      part_(rank == 0 ? pool_->part_at(begin) : nullptr),
      ranks_(ranks),
      header_(*reinterpret_cast<Header*>(memory_)),
      options_(header_.options),
      usable_(options_.beginning(ranks)),
      states_(reinterpret_cast<RankState*>(memory_ + Layout(ranks, options_).states)),
      shrinks_(reinterpret_cast<ShrinkState*>(memory_ + Layout(ranks, options_).shrinks)),
      slots_(memory_ + Layout(ranks, options_).slots),
      chunks_(memory_ + Layout(ranks, options_).chunks) {
  use_whole_if_said(options_.first_operation - 1);
  first_ = usable_;
}

void SharedPart::make_whole(std::uint64_t operation) noexcept {
  if (std::exchange(tried_, true)) return;
  try {
    populate(*pool_, *part_, ranks_, options_, PoolPart::Real::kAll);
    header_.whole_from.store(operation, std::memory_order_release);
  } catch (const TransportError&) {
    // Operations go on with small chunks: slower, but correct.
  }
}

void SharedPart::look_whether_whole(std::uint64_t until) {
  if (header_.whole_from.load(std::memory_order_acquire) > until) return;
  usable_ = options_;
  whole_ = true;
}

}  // namespace gradred
