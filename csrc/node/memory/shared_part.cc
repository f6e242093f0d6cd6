#include "node/memory/shared_part.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "node/memory/memory_nodes.h"

namespace gradred {

NodeOptions SharedPart::rounded(NodeOptions options, std::size_t ranks) {
  const auto pages = [](std::size_t bytes) { return std::max(kPage, bytes / kPage * kPage); };
  options.slot_bytes = pages(options.slot_bytes);
  options.slot_beginning = std::min(pages(options.slot_beginning), options.slot_bytes);
  options.chunk_bytes = pages(std::max(options.chunk_bytes, ranks * kCacheLine));
  options.piece_bytes = pages(std::min(options.piece_bytes, options.chunk_bytes));
  options.depth = std::max<std::size_t>(4, options.depth);
  constexpr std::size_t kAllRings = 128 << 20;  // of all ranks, unless they need more for chunks
  const std::size_t most = std::max(NodeOptions().ring_bytes, kAllRings / (2 * ranks));
  options.ring_bytes = std::min(options.ring_bytes, most);
  options.ring_bytes = pages(
      std::max({options.ring_bytes, options.slot_bytes, options.depth * options.chunk_bytes}));
  return options;
}

PoolPart::Real SharedPart::at_first(const NodeOptions& options, std::size_t ranks) {
  const bool by_slots = options.first_bytes > kShortSlot &&
                        options.slots(ranks).fits_slots(options.first_bytes, ranks);
  return by_slots ? PoolPart::Real::kSlots : PoolPart::Real::kLines;
}

namespace {

// The node from which this thread must touch a rank's pages first: none if the kernel knows it.
const MemoryNode* to_touch_from(const PoolPart& part, const MemoryNode* node) {
  return part.is_placed ? nullptr : node;
}

// Allocates the rooms, in pieces that lie on one memory node, as huge pages cross no border.
void populate_rooms(Pool& pool, PoolPart& part, const Layout& layout, const NodeOptions& options) {
  std::size_t done = 0;
  const auto populate_until = [&](std::size_t end, const MemoryNode* node) {
    const OnMemoryNode there(to_touch_from(part, node));
    pool.populate(part, part.real, part.rooms + done, end - done);
    done = end;
  };
  const std::size_t owned = 2 * options.ring_bytes;  // by each rank
  for (const RanksOnMemoryNode& run : runs_of(part.memory_nodes)) {
    const std::size_t begin = layout.rings + run.first * owned;
    if (begin > done) populate_until(begin, nullptr);
    populate_until(begin + run.ranks * owned, run.node);
  }
  pool.populate(part, PoolPart::Real::kAll, part.rooms + done, layout.room_bytes - done);
}

// Only what is allocated later obeys. Containers often refuse; the thread that allocates then runs
// near the owner meanwhile.
void place_rooms(Pool& pool, PoolPart& part, const Layout& layout, const NodeOptions& options) {
  part.is_placed = true;
  const std::size_t owned = 2 * options.ring_bytes;  // by each rank
  for (const RanksOnMemoryNode& run : runs_of(part.memory_nodes)) {
    part.is_placed &= prefer_memory_node(pool.at(part.rooms + layout.rings + run.first * owned),
                                         run.ranks * owned, run.node);
  }
}

}  // namespace

// Allocates `wanted` of a part, unless that is done already.
void SharedPart::populate(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                          PoolPart::Real wanted) {
  using Real = PoolPart::Real;
  const Layout layout(ranks, options);
  if (part.real < Real::kLines) pool.populate(part, Real::kLines, part.lines, layout.line_bytes);
  if (part.real >= wanted) return;
  if (part.real == Real::kLines) place_rooms(pool, part, layout, options);
  if (wanted == Real::kAll) return populate_rooms(pool, part, layout, options);
  const NodeOptions beginning = options.beginning(ranks);
  const auto populate_one = [&](std::size_t rank, std::size_t at, std::size_t bytes) {
    const bool several = !part.memory_nodes.empty();
    const OnMemoryNode there(to_touch_from(part, several ? part.memory_nodes[rank] : nullptr));
    pool.populate(part, part.real, part.rooms + at, bytes);
  };
  const auto populate_in_rings = [&](std::size_t at, std::size_t bytes) {
    for (std::size_t ring = 0; ring < 2 * ranks; ++ring) {
      populate_one(ring / 2, layout.rings + ring * options.ring_bytes + at, bytes);
    }
  };
  if (part.real < Real::kSlots) populate_in_rings(0, beginning.slot_bytes);
  part.real = std::max(part.real, Real::kSlots);
  if (part.real >= wanted) return;
  for (std::size_t chunk = 0; chunk < options.depth; ++chunk) {
    populate_in_rings(chunk * options.chunk_bytes, beginning.chunk_bytes);
  }
  part.real = wanted;
}

void SharedPart::prepare(Pool& pool, PoolPart& part, std::size_t ranks, const NodeOptions& options,
                         PoolPart::Real wanted) {
  populate(pool, part, ranks, options, wanted);
  std::byte* const memory = pool.at(part.lines);
  const Layout layout(ranks, options);
  auto& header = *reinterpret_cast<Header*>(memory);
  if (header.shrinks.load(std::memory_order_relaxed) != 0) {
    std::memset(pool.at(part.rooms), 0, ranks * sizeof(ShrinkState));
  }
  std::memset(memory, 0, layout.short_slots);
  auto* states = reinterpret_cast<RankState*>(memory + layout.states);
  const std::uint64_t last = options.first_operation - 1;
  const auto from = [&](PoolPart::Real real) { return part.real >= real ? last : Header::kNotYet; };
  header.options = options;
  header.rooms = part.rooms;
  header.slots_at_first = part.real >= PoolPart::Real::kSlots ? 1 : 0;
  header.beginnings_from = from(PoolPart::Real::kBeginnings);
  header.whole_from = from(PoolPart::Real::kAll);
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
      lines_(pool_->at(begin)),
      part_(rank == 0 ? pool_->part_with(begin) : nullptr),
      ranks_(ranks),
      header_(*reinterpret_cast<Header*>(lines_)),
      options_(header_.options),
      usable_(header_.slots_at_first != 0 ? options_.slots(ranks) : options_.lines()),
      rooms_(pool_->at(header_.rooms)),
      states_(reinterpret_cast<RankState*>(lines_ + Layout(ranks, options_).states)),
      gathered_(lines_ + Layout(ranks, options_).gathered),
      gathered_bytes_(Layout(ranks, options_).gathered_bytes),
      short_slots_(lines_ + Layout(ranks, options_).short_slots),
      shrinks_(reinterpret_cast<ShrinkState*>(rooms_)),
      rings_(rooms_ + Layout(ranks, options_).rings) {
  use_more_if_said(options_.first_operation - 1);
  first_ = usable_;
}

void SharedPart::allow_shrinking() const {
  pool_->populate(header_.rooms, ranks_ * sizeof(ShrinkState));
  header_.shrinks.store(1, std::memory_order_relaxed);
}

void SharedPart::grow(std::uint64_t operation, std::size_t bytes) {
  if (bytes > kBeginning) make_whole(operation);
  if (part_->real >= PoolPart::Real::kBeginnings && usable_.chunk_bytes > 0) return;
  populate(*pool_, *part_, ranks_, options_, PoolPart::Real::kBeginnings);
  header_.beginnings_from.store(operation, std::memory_order_release);
}

// Without memory for it, operations go on with small chunks: slower, but correct.
void SharedPart::make_whole(std::uint64_t operation) noexcept {
  if (std::exchange(tried_, true) || !pool_->may_make_whole()) return;
  try {
    populate(*pool_, *part_, ranks_, options_, PoolPart::Real::kAll);
    header_.whole_from.store(operation, std::memory_order_release);
  } catch (const TransportError&) {
  }
}

void SharedPart::look_for_more(std::uint64_t until) {
  if (header_.whole_from.load(std::memory_order_acquire) <= until) {
    usable_ = options_;
    whole_ = true;
  } else if (header_.beginnings_from.load(std::memory_order_acquire) <= until) {
    usable_ = options_.beginning(ranks_);
  }
}

}  // namespace gradred
